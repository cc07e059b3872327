"""Generate the Python modules of ``proto/**/*.proto`` into ``python/``.

Run by ``make proto``; CI runs it again and fails on a difference, so the output depends on nothing but the
protos and the locked grpcio-tools: files are visited in sorted order, and nothing carries a date or a path.

Beside what protoc writes, each service gets a typed ``*_pb2_grpc.pyi``, because grpcio-tools writes none and
``mypy --strict`` refuses calls to untyped stubs.

Usage: ``python scripts/gen_proto.py [--check]``; ``--check`` writes nothing and exits 1 on a difference.
"""

from __future__ import annotations

import argparse
import importlib.resources
import sys
import tempfile
from pathlib import Path

from google.protobuf import descriptor_pb2
from grpc_tools import protoc

ROOT = Path(__file__).resolve().parents[1]
PROTO = ROOT / "proto"
PYTHON = ROOT / "python"


def main() -> int:
    """Generate, or with ``--check`` compare; the exit status."""
    parser = argparse.ArgumentParser(description="Generate Python code from proto/.")
    parser.add_argument("--check", action="store_true", help="only compare; exit 1 on a difference")
    check = parser.parse_args().check
    with tempfile.TemporaryDirectory() as folder:
        fresh = Path(folder)
        generate(fresh)
        stale = [path for path in sorted(fresh.rglob("*")) if path.is_file() and differs(path, fresh)]
        if check:
            for path in stale:
                sys.stderr.write(f"stale: python/{path.relative_to(fresh)}; run `make proto`\n")
            return 1 if stale else 0
        for path in stale:
            target = PYTHON / path.relative_to(fresh)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
    return 0


def differs(path: Path, fresh: Path) -> bool:
    """Whether the committed copy of a generated file is missing or not the same."""
    committed = PYTHON / path.relative_to(fresh)
    return not committed.exists() or committed.read_bytes() != path.read_bytes()


def generate(out: Path) -> None:
    """Write all generated files below ``out``."""
    protos = sorted(str(path.relative_to(PROTO)) for path in PROTO.rglob("*.proto"))
    bundled = importlib.resources.files("grpc_tools") / "_proto"
    descriptors = out / "descriptors.bin"
    code = protoc.main(
        [
            "protoc",
            f"-I{PROTO}",
            f"-I{bundled}",
            f"--python_out={out}",
            f"--pyi_out={out}",
            f"--grpc_python_out={out}",
            f"--descriptor_set_out={descriptors}",
            "--include_imports",
            *protos,
        ]
    )
    if code != 0:
        sys.exit(code)
    files = descriptor_pb2.FileDescriptorSet.FromString(descriptors.read_bytes())
    descriptors.unlink()
    for file in files.file:
        if file.name not in protos:
            continue
        stub = out / file.name.replace(".proto", "_pb2_grpc.pyi")
        if file.service:
            stub.write_text(grpc_stub(file, files), encoding="utf-8")
        else:
            stub.with_suffix(".py").unlink(missing_ok=True)  # a module without a service is only noise


def grpc_stub(file: descriptor_pb2.FileDescriptorProto, files: descriptor_pb2.FileDescriptorSet) -> str:
    """The typed interface of the services of one file, for ``grpc.aio``."""
    homes = {f".{f.package}.{m.name}": f.name for f in files.file for m in f.message_type}
    modules: set[str] = set()

    def name(message: str) -> str:
        module = homes[message].removesuffix(".proto").replace("/", ".") + "_pb2"
        modules.add(module)
        return f"{module}.{message.rsplit('.', 1)[1]}"

    kinds = {
        (False, False): "UnaryUnary",
        (False, True): "UnaryStream",
        (True, False): "StreamUnary",
        (True, True): "StreamStream",
    }
    body: list[str] = []
    for service in file.service:
        stub = [
            f"class {service.name}Stub:",
            "    def __init__(self, channel: grpc.aio.Channel) -> None: ...",
        ]
        servicer = [f"class {service.name}Servicer:"]
        for method in service.method:
            asks, gives = name(method.input_type), name(method.output_type)
            kind = kinds[method.client_streaming, method.server_streaming]
            stub.append(f"    {method.name}: grpc.aio.{kind}MultiCallable[{asks}, {gives}]")
            argument = (
                f"request_iterator: AsyncIterator[{asks}]" if method.client_streaming else f"request: {asks}"
            )
            context = f"context: grpc.aio.ServicerContext[{asks}, {gives}]"
            if method.server_streaming:
                servicer.append(
                    f"    def {method.name}(self, {argument}, {context}) -> AsyncIterator[{gives}]: ..."
                )
            else:
                servicer.append(f"    async def {method.name}(self, {argument}, {context}) -> {gives}: ...")
        body += [*stub, "", *servicer, ""]
        body += [
            f"def add_{service.name}Servicer_to_server(",
            f"    servicer: {service.name}Servicer, server: grpc.Server | grpc.aio.Server",
            ") -> None: ...",
            "",
        ]
    head = [
        "# Written by scripts/gen_proto.py; edit the .proto file instead.",
        "from collections.abc import AsyncIterator",
        "",
        "import grpc",
        "import grpc.aio",
        *[f"import {module}" for module in sorted(modules)],
        "",
    ]
    return "\n".join([*head, *body]).rstrip() + "\n"


if __name__ == "__main__":
    sys.exit(main())
