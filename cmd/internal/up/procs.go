package up

import (
	"os"
	"runtime"
)

// workersAProc is how many workers one running thread of this process serves:
// the loop is one goroutine, and an input of it takes some microseconds.
const workersAProc = 4

// confine lets the loop of a run run on as few threads at once as serve its
// workers, until release. On many cores every reply would wake a second thread
// to look for work that the first has done by then, at each of the two or three
// hand-overs between goroutines that a reply takes. What waits in a system call
// does not count. A GOMAXPROCS of the user's own stays.
//
// It is for a process that does nothing else: o.Alone says so.
func (o Options) confine(workers int) (release func()) {
	if !o.Alone || os.Getenv("GOMAXPROCS") != "" {
		return func() {}
	}
	runtime.GOMAXPROCS(procs(workers, runtime.GOMAXPROCS(0)))
	return runtime.SetDefaultGOMAXPROCS
}

// procs is how many threads run at once, of those that could.
func procs(workers, most int) int { return min(most, 1+workers/workersAProc) }
