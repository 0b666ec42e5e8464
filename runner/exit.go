package runner

// Exit codes of the binary. `go run` turns every failure into 1.
const (
	ExitDone      = 0
	ExitFailed    = 1  // may be retried
	ExitUsage     = 2  // usage or configuration
	ExitPreflight = 3  // preflight refused
	ExitStopped   = 75 // stopped by a signal, after a checkpoint where a step was trained
	ExitHopeless  = 93 // must not be retried
)
