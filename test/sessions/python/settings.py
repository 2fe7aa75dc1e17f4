"""The settings of the published service and what they are by default, as JSON. The service
itself is not imported: what it needs is not installed."""

import ast
import json
import pathlib

from importlib import metadata

source = metadata.distribution("pydantic-ai-backend").locate_file("pydantic_ai_backends/remote/server.py")
tree = ast.parse(pathlib.Path(source).read_text())
config = next(n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "SandboxdConfig")
fields = {}
for field in config.body:
    if isinstance(field, ast.AnnAssign):
        try:
            fields[field.target.id] = eval(compile(ast.Expression(field.value), "", "eval"), {"__builtins__": {}})
        except Exception:  # none, or one that is computed
            fields[field.target.id] = None
print(json.dumps(fields))
