package up

import (
	"os"
	"runtime"
	"sync"
)

// workersAProc is how many workers one running thread of this process serves:
// the loop is one goroutine, and an input of it takes some microseconds.
const workersAProc = 4

// processors is how many threads of this process run Go's code at once while a
// run trains. On many cores every reply would wake a second thread to look for
// work that the first has done by then, at each of the two or three hand-overs
// between goroutines that a reply takes. What waits in a system call does not
// count. The zero value leaves the process as it is. Safe for concurrent use.
type processors struct {
	mu    sync.Mutex
	few   int // for the loop; 0: they are not confined
	heavy int // that compute beside it now
}

// confine lets the loop run on as few threads at once as serve its workers,
// until release. A GOMAXPROCS of the user's own stays. It is for a process that
// does nothing else: Options.Alone says so.
func (p *processors) confine(workers int) (release func()) {
	if os.Getenv("GOMAXPROCS") != "" {
		return func() {}
	}
	p.set(func() { p.few = procs(workers, runtime.GOMAXPROCS(0)) })
	return func() {
		p.set(func() { p.few = 0 })
		runtime.SetDefaultGOMAXPROCS()
	}
}

// beside calls f, which computes for long, as the digest of a checkpoint does:
// meanwhile the loop keeps a thread of its own. With one for both, a reply would
// wait up to ten milliseconds until the scheduler looks for it.
func (p *processors) beside(f func()) {
	p.set(func() { p.heavy++ })
	defer p.set(func() { p.heavy-- })
	f()
}

func (p *processors) set(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
	if p.few > 0 {
		runtime.GOMAXPROCS(p.few + p.heavy)
	}
}

// procs is how many threads run at once, of those that could.
func procs(workers, most int) int { return min(most, 1+workers/workersAProc) }
