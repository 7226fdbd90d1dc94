"""A W&B service on this machine, as small as a run needs: it answers GraphQL, and keeps what a run streams to it."""

import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Run:
    """What the service holds of a run."""

    def __init__(self) -> None:
        self.bucket: dict[str, Any] = {}
        self.history: list[dict[str, Any]] = []
        self.summary: dict[str, Any] = {}
        self.complete: list[Any] = []


class Service:
    """`runs` by their id; `deaf`: it accepts connections and no longer answers."""

    def __init__(self) -> None:
        self.runs: dict[str, Run] = {}
        self.queries: list[tuple[str, dict[str, Any]]] = []
        self.artifacts: list[dict[str, Any]] = []
        self.deaf = threading.Event()
        self.released = threading.Event()
        service = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args: Any) -> None:
                pass

            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                if service.deaf.is_set():
                    service.released.wait(120)
                    self.close_connection = True
                    return
                content = service.answer(self.path, body)
                data = json.dumps(content).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = do_PUT = answer

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def environment(self) -> dict[str, str]:
        return {"WANDB_BASE_URL": f"http://127.0.0.1:{self.server.server_port}", "WANDB_API_KEY": "a" * 40}

    def close(self) -> None:
        self.released.set()
        self.server.shutdown()
        self.server.server_close()

    def answer(self, path: str, body: bytes) -> Any:
        if path.endswith("/graphql"):
            asked = json.loads(body)
            name = re.search(r"(?:query|mutation)\s+(\w+)", asked["query"])
            return {"data": self.graphql(name[1] if name else "", asked["query"], asked.get("variables") or {})}
        if found := re.search(r"/files/[^/]+/[^/]+/([^/]+)/file_stream", path):
            return self.streamed(self.runs.setdefault(found[1], Run()), json.loads(body))
        return {}

    def streamed(self, run: Run, content: dict[str, Any]) -> dict[str, Any]:
        for name, file in (content.get("files") or {}).items():
            lines = [json.loads(line) for line in file["content"]] if name.endswith(("jsonl", "json")) else []
            if name == "wandb-history.jsonl":
                run.history[file["offset"] :] = lines
            elif name == "wandb-summary.json":
                run.summary = lines[-1]
        if content.get("complete"):
            run.complete.append(content.get("exitcode"))
        return {}

    def graphql(self, name: str, query: str, variables: dict[str, Any]) -> dict[str, Any]:
        self.queries.append((name, variables))
        if name == "UpsertBucket":
            run = self.runs.setdefault(variables["name"], Run())
            inserted = not run.bucket
            run.bucket |= {k: v for k, v in variables.items() if v is not None}
            project = {"name": variables.get("project") or "p", "entity": {"name": "me"}}
            bucket = {"id": variables["name"], "name": variables["name"], "displayName": variables.get("displayName")}
            more = {"project": project, "sweepName": None, "historyLineCount": len(run.history), "config": "{}"}
            return {"upsertBucket": {"bucket": bucket | more, "inserted": inserted}}
        if name == "RunResumeStatus":
            return {
                "model": {
                    "id": "p",
                    "name": "p",
                    "entity": {"id": "me", "name": "me"},
                    "bucket": self.resumed(variables),
                }
            }
        if name == "CreateArtifact":
            self.artifacts.append(variables["input"])
            stored = {
                "id": f"a{len(self.artifacts)}",
                "state": "COMMITTED",
                "artifactSequence": {"latestArtifact": None},
            }
            return {"createArtifact": {"artifact": stored}}
        if name == "ServerFeaturesQuery":
            return {"serverInfo": {"features": []}}
        if name == "CreateRunFiles":
            return {"createRunFiles": {"runID": variables.get("runName", "r"), "uploadHeaders": [], "files": []}}
        if name == "ArtifactType":
            return {"project": {"artifact": None, "artifactType": None}}
        return {"viewer": {"id": "v", "entity": "me", "username": "me", "flags": "{}", "teams": {"edges": []}}}

    def resumed(self, variables: dict[str, Any]) -> dict[str, Any] | None:
        run = self.runs.get(variables["name"])
        if run is None:
            return None
        tail = json.dumps([json.dumps(line) for line in run.history[-1:]])
        return {
            "id": variables["name"],
            "name": variables["name"],
            "historyLineCount": len(run.history),
            "eventsLineCount": 0,
            "logLineCount": 0,
            "historyTail": tail,
            "eventsTail": "[]",
            "summaryMetrics": json.dumps(run.summary),
            "config": "{}",
            "tags": [],
            "wandbConfig": json.dumps({"t": 1}),
        }
