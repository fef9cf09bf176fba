"""A private authority, and what makes a Redis speak TLS with it."""

from __future__ import annotations

import subprocess
from pathlib import Path


def make_authority(folder: Path) -> Path:
    """Makes an authority (ca.pem) and a certificate for 127.0.0.1 (cert.pem, key.pem) in the folder."""
    new = ["req", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj"]
    signing = ["-CAcreateserial", "-days", "2", "-extfile", "ext", "-out", "cert.pem"]
    usage = "critical,keyCertSign,cRLSign"
    (folder / "ext").write_text("subjectAltName=IP:127.0.0.1\nauthorityKeyIdentifier=keyid")
    for arguments in (
        # Python 3.13 checks strictly: an authority must say that it may sign.
        [*new, "/CN=Test CA", "-x509", "-addext", f"keyUsage={usage}", "-keyout", "ca.key", "-out", "ca.pem"],
        [*new, "/CN=127.0.0.1", "-keyout", "key.pem", "-out", "req.pem"],
        ["x509", "-req", "-in", "req.pem", "-CA", "ca.pem", "-CAkey", "ca.key", *signing],
    ):
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)
    return folder


def redis_options(authority: Path, port: int) -> list[str]:
    """For a server that speaks TLS on this port too, and asks no client for a certificate."""
    files = ("--tls-cert-file", "cert.pem", "--tls-key-file", "key.pem", "--tls-ca-cert-file", "ca.pem")
    paths = [str(authority / x) if x.endswith(".pem") else x for x in files]
    return ["--tls-port", str(port), *paths, "--tls-auth-clients", "no"]
