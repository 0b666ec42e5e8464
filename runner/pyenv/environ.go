package pyenv

import (
	"slices"
	"strings"
)

// What the children that find and make an environment inherit: enough to reach
// a package index the way the user does, and nothing that would change what
// Python imports or where packages are installed.
var (
	keepExact = []string{
		"PATH", "HOME", "USER", "LOGNAME", "TMPDIR", "LANG", "LANGUAGE", "LD_LIBRARY_PATH", "NETRC",
		"REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY",
		"http_proxy", "https_proxy", "all_proxy", "no_proxy",
	}
	keepPrefix = []string{"LC_", "XDG_", "PIP_", "UV_", "SSL_", "PYENV_"}
	// Would install somewhere else, something else, or nothing.
	dropExact = []string{
		"PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_USER", "PIP_PYTHON", "PIP_DRY_RUN", "PIP_CONSTRAINT",
		"PIP_REQUIREMENT", "PIP_EDITABLE", "PIP_REPORT", "PIP_IGNORE_INSTALLED", "PIP_NO_DEPS", "PIP_LOG", "PIP_QUIET", "PIP_VERBOSE",
		"UV_PYTHON", "UV_SYSTEM_PYTHON", "UV_PROJECT_ENVIRONMENT", "UV_CONSTRAINT", "UV_OVERRIDE", "UV_EXCLUDE",
		"UV_TARGET", "UV_PREFIX", "UV_NO_DEPS", "UV_DRY_RUN", "UV_REINSTALL", "UV_UPGRADE", "UV_EXCLUDE_NEWER", "UV_QUIET", "UV_NO_PROGRESS",
		"UV_PRERELEASE", "UV_RESOLUTION", "UV_TORCH_BACKEND", "UV_OFFLINE_INSTALL", "UV_COMPILE_BYTECODE", "UV_WORKING_DIRECTORY", "UV_WORKING_DIR",
	}
)

// childEnviron filters a process environment for a child that makes one.
func childEnviron(environ []string) []string {
	var out []string
	for _, kv := range environ {
		k, _, _ := strings.Cut(kv, "=")
		if slices.Contains(dropExact, k) {
			continue
		}
		if slices.Contains(keepExact, k) || slices.ContainsFunc(keepPrefix, func(p string) bool { return strings.HasPrefix(k, p) }) {
			out = append(out, kv)
		}
	}
	return out
}

// withIndex carries a package index that the user set up for pip (in files or
// in PIP_*) over to uv, which does not read them. What is set for uv wins.
// config is what `pip config list` printed.
func withIndex(env []string, config string) []string {
	set := func(pip string, uv ...string) {
		for _, name := range uv {
			if slices.ContainsFunc(env, func(kv string) bool { return strings.HasPrefix(kv, name+"=") }) {
				return
			}
		}
		if v := pipSetting(config, pip); v != "" {
			env = append(env, uv[0]+"="+v)
		}
	}
	set("index-url", "UV_DEFAULT_INDEX", "UV_INDEX_URL")
	set("extra-index-url", "UV_INDEX", "UV_EXTRA_INDEX_URL")
	set("cert", "SSL_CERT_FILE")
	return env
}

// pipSetting finds a setting in the output of `pip config list`, whose lines
// are SECTION.KEY='VALUE'; the environment's wins over `install`, and that
// over `global`.
func pipSetting(config, key string) string {
	for _, section := range []string{":env:", "install", "global"} {
		for line := range strings.Lines(config) {
			k, v, ok := strings.Cut(strings.TrimSpace(line), "=")
			if ok && k == section+"."+key && len(v) >= 2 {
				return strings.Join(strings.Fields(strings.ReplaceAll(v[1:len(v)-1], `\n`, " ")), " ")
			}
		}
	}
	return ""
}
