# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

"""A gateway of the kit's own: nginx with the module, and a Redis if asked.
All on loopback, in a folder of its own, which goes when it ends."""

import asyncio
import ctypes
import os
import shutil
import signal
import socket
import subprocess
import time

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "../../.."))

# What the scenarios call a location.  Times are short, so that nobody has to
# wait for what takes half a minute in the wild.

LOCATIONS = {
    "plain": "",
    "nowait": "idempotency_wait 0; idempotency_retry_after 200ms;",
    "short": "idempotency_wait 200ms; idempotency_retry_after 200ms;",
    "crowd": "idempotency_max_waiters 1; idempotency_retry_after 200ms;",
    "hold": "idempotency_unknown_outcome hold;",
    "lease": "idempotency_lease 1s;",
    "retry": "idempotency_unknown_outcome retry;",
    "ttl": "idempotency_ttl 1s;",
    "small": "idempotency_max_response 1k;",
    "any": "idempotency_keep_status any;",
    "conflict422": "idempotency_conflict_status 422;",
    "quoted": "idempotency_key_format string quoted=required;",
    "uuid": "idempotency_key_format uuid4; idempotency_required on;",
    "slow": "proxy_read_timeout 400ms;",
    "slowhold": "proxy_read_timeout 400ms; idempotency_unknown_outcome hold;",
}


# What a scenario may ask of the gateway, and the directive that shows it.

FEATURES = {"idempotency_stream tee;"}


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def wait_for(what, code, seconds=20):
    end = time.monotonic() + seconds
    while not code():
        if time.monotonic() > end:
            raise RuntimeError(f"in vain for {seconds} s: {what}")
        time.sleep(0.02)


def listening(port):
    with socket.socket() as s:
        return s.connect_ex(("127.0.0.1", port)) == 0


def dies_with_us():
    """In the child: ends when the process that started it does."""
    try:
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)
    except (OSError, AttributeError):
        pass


class Site:
    def __init__(self, store, app_port, workers=2):
        self.store = store
        self.port = free_port()
        self.workers = workers
        self.dir = os.path.join(ROOT, "build", f"clients-site.{os.getpid()}")
        self._app = app_port
        self._redis = None
        self._nginx = None
        self.redis_port = free_port() if store == "redis" else 0

    def start(self):
        shutil.rmtree(self.dir, ignore_errors=True)
        os.makedirs(os.path.join(self.dir, "logs"))

        if self.store == "redis":
            self.start_store()

        self._configure()
        nginx = os.environ.get("TEST_NGINX_BINARY", "/usr/sbin/nginx")
        command = [nginx, "-p", self.dir, "-c", "nginx.conf",
                   "-e", f"{self.dir}/logs/error.log"]
        said = subprocess.run(command + ["-t", "-q"], capture_output=True,
                              text=True)
        if said.returncode != 0:
            raise RuntimeError(f"nginx refuses its configuration: {said.stderr}")

        self.features = {name for name in FEATURES if self._takes(command, name)}
        self._nginx = subprocess.Popen(command, preexec_fn=dies_with_us)
        wait_for("nginx", lambda: self._nginx.poll() is None
                 and listening(self.port))

    def _takes(self, command, directive):
        """Whether the module knows a directive, by asking nginx."""
        self._configure(directive)
        said = subprocess.run(command[:-1] + ["stderr", "-t", "-q"],
                              capture_output=True)
        self._configure()
        return said.returncode == 0

    def stop(self):
        if self._nginx is not None:
            self._nginx.send_signal(signal.SIGTERM)
            try:
                self._nginx.wait(10)
            except subprocess.TimeoutExpired:
                self._nginx.kill()
                self._nginx.wait()
        self.stop_store()
        shutil.rmtree(self.dir, ignore_errors=True)

    def _configure(self, more=""):
        module = os.environ.get(
            "IDEMPOTENCY_MODULE",
            os.path.join(ROOT, "build/ngx_http_idempotency_module.so"))
        load = "" if module == "static" else f"load_module {module};"

        store, declared = "on", ""
        if self.store == "redis":
            store = "shared"
            declared = ("idempotency_store shared redis { server "
                        f"127.0.0.1:{self.redis_port}; }}")

        locations = "\n".join(
            f"location /{name}/ {{ {text} idempotency {store}; "
            f"proxy_pass http://127.0.0.1:{self._app}; }}"
            for name, text in LOCATIONS.items())

        temp = "\n".join(f"{kind}_temp_path temp_{kind};" for kind in
                         ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))

        with open(os.path.join(self.dir, "nginx.conf"), "w") as f:
            f.write(f"""{load}
daemon off;
{"user root;" if os.getuid() == 0 else ""}
pid nginx.pid;
worker_processes {self.workers};
error_log logs/error.log info;
events {{ worker_connections 1024; }}
http {{
    {temp}
    access_log off;
    proxy_http_version 1.1;
    proxy_set_header Connection close;
    {declared}
    {more}
    server {{
        listen 127.0.0.1:{self.port} backlog=1024;
        {locations}
    }}
}}
""")

    # --- what may happen to it ----------------------------------------------

    def start_store(self):
        self._redis = subprocess.Popen(
            ["redis-server", "--port", str(self.redis_port), "--bind",
             "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", self.dir],
            stdout=subprocess.DEVNULL, preexec_fn=dies_with_us)
        wait_for("redis-server", lambda: listening(self.redis_port))

    def stop_store(self):
        if self._redis is not None:
            self._redis.kill()
            self._redis.wait()
            self._redis = None

    def pause_store(self, paused):
        """Its data stays, and nothing is answered."""
        self._redis.send_signal(signal.SIGSTOP if paused else signal.SIGCONT)

    def pids(self):
        """Of the workers that serve."""
        pids = []
        master = self._nginx.pid
        with open(f"/proc/{master}/task/{master}/children") as f:
            children = f.read().split()
        for pid in children:
            try:
                with open(f"/proc/{pid}/cmdline", "rb") as f:
                    title = f.read()
            except OSError:
                continue
            if b"worker process" in title and b"shutting down" not in title:
                pids.append(int(pid))
        return pids

    def reload(self):
        before = set(self.pids())
        self._nginx.send_signal(signal.SIGHUP)
        wait_for("new workers", lambda: len(self.pids()) >= self.workers
                 and not before & set(self.pids()))

    def kill_workers(self, count=None):
        """As a crash would; returns when there are new ones."""
        pids = self.pids()[:count]
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        wait_for("new workers", lambda: len(self.pids()) >= self.workers
                 and not set(pids) & set(self.pids()))

    def complaints(self):
        """Lines of the error log that should not be there."""
        with open(os.path.join(self.dir, "logs/error.log"),
                  errors="replace") as f:
            return [line.rstrip() for line in f
                    if any(level in line for level in
                           ("[alert]", "[crit]", "[emerg]"))
                    and "exited on signal 9" not in line]


async def in_thread(code, *arguments):
    return await asyncio.get_running_loop().run_in_executor(None, code,
                                                            *arguments)
