"""YAML in which no key may stand twice."""

from __future__ import annotations

from typing import Any


def strict_loader() -> type:
    """YAML's safe loader, which takes the last of two equal keys without a word, made to refuse them (YAMLError)."""
    import yaml

    class Strict(yaml.SafeLoader):
        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            names = [str(key.value) for key, _ in node.value] if isinstance(node, yaml.MappingNode) else []
            twice = next((name for name in names if names.count(name) > 1), None)
            if twice is not None:
                raise yaml.YAMLError(f"the key {twice[:40]!r} stands twice in one entry")
            return super().construct_mapping(node, deep)

    return Strict
