// Scores each token of the text with the ONNX model in model/; all files come from this page's own server.
const DELAY_MS = 150; // after the last key
const LIKELY = 0.5;
const [input, list, status, size] = ["text", "tokens", "status", "size"].map((id) => document.getElementById(id));

async function read(path) {
  const response = await fetch(path);
  if (!response.ok) throw new Error(`${path}: ${response.status} ${response.statusText}`);
  return response;
}

async function loadModel() {
  const [ort, { Tokenizer }] = await Promise.all([
    import("./lib/ort.wasm.bundle.min.mjs"),
    import("./lib/tokenizers.min.mjs"),
  ]);
  ort.env.wasm.numThreads = 1; // more need special headers from the server
  const names = ["tokenizer.json", "tokenizer_config.json"];
  const files = names.map(async (name) => (await read(`model/${name}`)).json());
  const [tokenizer, settings] = await Promise.all(files);
  const weights = await (await read("model/onnx/model_quantized.onnx")).arrayBuffer();
  const session = await ort.InferenceSession.create(weights);
  return { ort, session, tokenizer: new Tokenizer(tokenizer, settings), settings, bytes: weights.byteLength };
}

// Tokens of the text with their probabilities, without special tokens that the tokenizer adds at both ends.
async function score({ ort, session, tokenizer, settings }, text) {
  const { ids, tokens } = tokenizer.encode(text);
  const most = settings.model_max_length;
  const isCut = ids.length > most;
  const kept = isCut ? [...ids.slice(0, most - 1), ids.at(-1)] : ids;
  const tensor = (values) => new ort.Tensor("int64", BigInt64Array.from(values, BigInt), [1, kept.length]);
  const { logits } = await session.run({
    input_ids: tensor(kept),
    attention_mask: tensor(kept.map(() => 1)),
    token_type_ids: tensor(kept.map(() => 0)),
  });
  const scored = kept.map((_, i) => ({ token: tokens[i], probability: 1 / (1 + Math.exp(-logits.data[i])) }));
  return { scored: scored.slice(1, -1), isCut };
}

function report(text, isError = false) {
  status.textContent = text;
  status.className = isError ? "is-error" : "";
}

function show(text, { scored, isCut }, milliseconds) {
  const hasWordMarks = scored.some(({ token }) => token.startsWith("▁")); // else BERT's, which marks the other tokens
  const items = scored.map(({ token, probability }) => {
    const item = document.createElement("li");
    const number = document.createElement("small");
    number.textContent = `${Math.round(probability * 100)}%`;
    item.append(token.replace(/^(▁|##)(?=.)/u, ""), number);
    item.title = `${token}: P(replaced) ${probability.toFixed(3)}`;
    item.dataset.token = token;
    item.dataset.probability = probability;
    item.style.setProperty("--p", probability);
    item.classList.toggle("starts-word", hasWordMarks ? token.startsWith("▁") : !token.startsWith("##"));
    item.classList.toggle("is-likely", probability > LIKELY);
    return item;
  });
  list.replaceChildren(...items);
  list.dataset.text = text;
  const cut = isCut ? " The text is too long; only its first tokens are scored." : "";
  report(`${scored.length} tokens in ${milliseconds.toFixed(1)} ms.${cut}`);
}

function fail(error) {
  list.replaceChildren();
  report(`The model could not be loaded or run. ${error.message ?? error}`, true);
}

async function main() {
  const model = await loadModel();
  await score(model, input.value); // the first call is slower, because the browser compiles the code
  size.textContent = `Model: ${(model.bytes / 1e6).toFixed(1)} MB, weights in int8.`;
  let timer;
  let previous = Promise.resolve(); // a session runs one text at a time
  const update = () => {
    previous = previous
      .then(async () => {
        const [text, start] = [input.value, performance.now()];
        const found = await score(model, text);
        show(text, found, performance.now() - start);
      })
      .catch(fail);
  };
  input.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(update, DELAY_MS);
  });
  update();
}

main().catch(fail);
