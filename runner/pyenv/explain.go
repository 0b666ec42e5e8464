package pyenv

import (
	"fmt"
	"strings"

	"github.com/dflash-runner/dflash-runner/runner"
)

// Traces in the output of pip and uv, by what they mean.
var (
	traceNetwork = []string{
		"Failed to fetch", "error sending request", "dns error", "Connection refused", "Connection reset", "timed out", "NewConnectionError",
		"ConnectTimeout", "ReadTimeout", "Temporary failure in name resolution", "Network is unreachable", "ProxyError",
		"Could not connect", "client error (Connect)", "connection broken",
		"(from versions: none)", // pip says no more than this without retries
	}
	traceCertificate = []string{"CERTIFICATE_VERIFY_FAILED", "invalid peer certificate", "UnknownIssuer", "certificate verify failed"}
	traceDisk        = []string{"No space left on device", "os error 28", "Disk quota exceeded"}
	traceHash        = []string{"Hash mismatch", "DO NOT MATCH THE HASHES"}
)

// explain turns a child's failure into an error that says what is missing and
// what to do.
func (m *maker) explain(verb string, tail []string, err error) *runner.Error {
	if runner.KindOf(err) == runner.Canceled {
		return runner.Errorf(runner.Canceled, "%s: %w", verb, err)
	}
	text := strings.Join(tail, "\n")
	has := func(traces []string) bool {
		for _, t := range traces {
			if strings.Contains(text, t) {
				return true
			}
		}
		return false
	}
	said := ""
	if len(tail) > 0 {
		said = ":\n  " + strings.Join(tail[max(0, len(tail)-8):], "\n  ")
	}
	switch {
	case has(traceDisk):
		return runner.Errorf(runner.Exhausted, "%s: no space left for %s%s", verb, m.dir, said).
			WithHint("free some space, or set XDG_CACHE_HOME to a larger disk")
	case has(traceCertificate):
		return runner.Errorf(runner.Unavailable, "%s: the package index's certificate is not trusted%s", verb, said).
			WithHint("name your organisation's certificates in SSL_CERT_FILE, then try again")
	case has(traceHash):
		return runner.Errorf(runner.Invalid, "%s: a package is not the one that was locked%s", verb, said).
			WithHint("the package index or a proxy serves another file: use one that mirrors the public index")
	case has(traceNetwork):
		return runner.Errorf(runner.Unavailable, "%s: no answer from the package index; missing: %s%s", verb, m.missingText(), said).
			WithHint("connect to the network, or set HTTPS_PROXY, or name a mirror in PIP_INDEX_URL or UV_DEFAULT_INDEX; then try again: what was downloaded is kept. A Python that has the packages already can be named in the configuration (python.interpreter)")
	}
	return runner.Errorf(runner.Unavailable, "%s: %s%s", verb, exitText(err), said)
}

// missingText names the packages that are not there, within reason.
func (m *maker) missingText() string {
	missing := m.missing()
	if len(missing) == 0 {
		return "none without a platform marker"
	}
	if n := len(missing); n > 8 {
		return fmt.Sprintf("%s and %d more", strings.Join(missing[:8], ", "), n-8)
	}
	return strings.Join(missing, ", ")
}
