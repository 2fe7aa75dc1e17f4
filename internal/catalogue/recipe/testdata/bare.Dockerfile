# The runtime bare, as sandboxd builds it.
FROM node:20-slim
USER 0:0
ARG DEBIAN_FRONTEND=noninteractive
RUN ["/bin/sh","-euc","sed -i -e '/^sandbox:/d' -e '/^[^:]*:[^:]*:1234:/d' /etc/passwd /etc/group\nshell=/bin/sh; [ ! -x /bin/bash ] || shell=/bin/bash\necho \"sandbox:x:1234:1234::/home/sandbox:$shell\" >>/etc/passwd\necho \"sandbox:x:1234:\" >>/etc/group\nmkdir -p /home/sandbox /srv/files /opt/npm\n[ ! -d /etc/skel ] || cp -r /etc/skel/. /home/sandbox/\nchown -R 1234:1234 /home/sandbox /srv/files /opt/npm\n[ ! -d /etc/profile.d ] || echo 'PATH=/home/sandbox/.local/bin:/opt/venv/bin:/opt/npm/bin:$PATH' >/etc/profile.d/sandboxd.sh"]
RUN ["/bin/sh","-euc","if python3 -c 'import ensurepip' 2>/dev/null; then python3 -m venv /opt/venv && chown -R 1234:1234 /opt/venv; fi"]
ENV PATH=/opt/venv/bin:/opt/npm/bin:$PATH PIP_DISABLE_PIP_VERSION_CHECK=1
ENV VIRTUAL_ENV=/opt/venv
ENV NPM_CONFIG_PREFIX=/opt/npm
USER 1234:1234
WORKDIR /srv/files
