# The runtime small, as sandboxd builds it.
FROM debian:12-slim
USER 0:0
ARG DEBIAN_FRONTEND=noninteractive
RUN ["/bin/sh","-euc","apt-get update && apt-get install -y --no-install-recommends 'jq' 'ripgrep' && rm -rf /var/lib/apt/lists/*"]
RUN ["/bin/sh","-euc","sed -i -e '/^sandbox:/d' -e '/^[^:]*:[^:]*:10001:/d' /etc/passwd /etc/group\nshell=/bin/sh; [ ! -x /bin/bash ] || shell=/bin/bash\necho \"sandbox:x:10001:10001::/home/sandbox:$shell\" >>/etc/passwd\necho \"sandbox:x:10001:\" >>/etc/group\nmkdir -p /home/sandbox /workspace /opt/npm\n[ ! -d /etc/skel ] || cp -r /etc/skel/. /home/sandbox/\nchown -R 10001:10001 /home/sandbox /workspace /opt/npm\n[ ! -d /etc/profile.d ] || echo 'PATH=/home/sandbox/.local/bin:/opt/venv/bin:/opt/npm/bin:$PATH' >/etc/profile.d/sandboxd.sh"]
RUN ["/bin/sh","-euc","python3 -c 'import ensurepip' 2>/dev/null || { apt-get update && apt-get install -y --no-install-recommends 'python3' 'python3-venv' && rm -rf /var/lib/apt/lists/*; }\npython3 -m venv /opt/venv && chown -R 10001:10001 /opt/venv"]
ENV PATH=/opt/venv/bin:/opt/npm/bin:$PATH PIP_DISABLE_PIP_VERSION_CHECK=1
ENV VIRTUAL_ENV=/opt/venv
ENV NPM_CONFIG_PREFIX=/opt/npm
RUN ["/bin/sh","-c","echo \"it's $HOME\" && true \\"]
RUN ["/bin/sh","-euc","for d in /opt/venv /opt/npm; do [ ! -d $d ] || find $d ! -user 10001 -exec chown -h 10001:10001 {} +; done"]
USER 10001:10001
RUN ["/bin/sh","-euc","python3 -m pip install --no-cache-dir 'pypdf>=4,<6'"]
RUN ["/bin/sh","-euc","npm install -g --no-audit --no-fund --no-update-notifier --cache /tmp/npm 'tsx@4.1.0' && rm -rf /tmp/npm ~/.npm"]
RUN ["/bin/sh","-euc","missing=; for t in 'jq' 'rg'; do command -v \"$t\" >/dev/null || missing=\"$missing $t\"; done; [ -z \"$missing\" ] || { echo \"these tools are not there:$missing\" >&2; exit 1; }"]
ENV A="1" B="a \"b\" \$c \\d"
WORKDIR /workspace
