package drive

import "github.com/dflash-runner/dflash-runner/runner/core"

// Tell gives the core an input, in tests that say what no seam can. From any goroutine.
func (l *Loop) Tell(in core.Input) { l.inbox.post(in) }
