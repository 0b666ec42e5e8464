package worker

import (
	"slices"
	"strings"
)

// passed and passedPrefixes are what a worker may inherit from the host;
// everything else it sees, the supervisor set. CUDA_VISIBLE_DEVICES, RANK and
// their like are left out on purpose: one that leaks in is silently wrong.
var (
	passed = []string{"HOME", "PATH", "USER", "LOGNAME", "TZ", "LANG", "LANGUAGE",
		"LD_LIBRARY_PATH", "CUDA_HOME", "CC", // where the driver and a compiler are: Triton links what it makes with them
		"http_proxy", "https_proxy", "no_proxy", "all_proxy",
		"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY"}
	passedPrefixes = []string{"LC_", "HF_", "NCCL_", "TORCH_", "TORCHINDUCTOR_", "TRITON_",
		"NVSHMEM_", "OMP_", "MKL_", "SSL_CERT"}
)

// Environment builds a worker's whole environment: the allowed part of host,
// then set, which wins. Names are unique (the last entry of each list counts),
// the result is sorted, and what is not NAME=value is left out.
func Environment(host, set []string) []string {
	merged := map[string]string{}
	for _, entry := range host {
		if name, value, ok := splitEntry(entry); ok && allowed(name) {
			merged[name] = value
		}
	}
	for _, entry := range set {
		if name, value, ok := splitEntry(entry); ok {
			merged[name] = value
		}
	}
	out := make([]string, 0, len(merged))
	for name, value := range merged {
		out = append(out, name+"="+value)
	}
	slices.Sort(out)
	return out
}

func splitEntry(entry string) (name, value string, ok bool) {
	name, value, ok = strings.Cut(entry, "=")
	return name, value, ok && name != "" && !strings.ContainsRune(entry, 0)
}

func allowed(name string) bool {
	return slices.Contains(passed, name) ||
		slices.ContainsFunc(passedPrefixes, func(p string) bool { return strings.HasPrefix(name, p) })
}
