package drive

import (
	"maps"
	"time"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/core"
)

// View is a picture of the run: the core's, and what only the loop knows.
type View struct {
	core.View
	Scheduler  string
	Pids       map[runner.Life]int
	ArenaBytes map[runner.Arena]uint64

	ImageBytes map[core.ImageID]uint64
	Worse      map[string]string // than asked for, by subject
	Arranged   Arranged          // the newest part of an order
}

// Arranged is a part of an epoch's order, and who gave it. It has no samples
// before the first.
type Arranged struct {
	By      string // the scheduler's name
	Builtin bool   // the built-in's answer: it alone is asked, or the other gave none
	Epoch   uint32
	Samples int
	At      time.Time
}

// view makes a View. From the loop alone.
func (l *Loop) view() View {
	v := View{View: l.core.View(), Scheduler: l.guard.scheduler.Name(), Pids: make(map[runner.Life]int, len(l.lives)),
		ArenaBytes: make(map[runner.Arena]uint64, len(l.arenas)), ImageBytes: map[core.ImageID]uint64{}, Worse: maps.Clone(l.degrade), Arranged: l.newest}
	for id, e := range l.lives {
		if e.process != nil {
			v.Pids[id] = e.process.Facts().Pid
		}
	}
	for id, r := range l.arenas {
		v.ArenaBytes[id] = r.Bytes()
	}
	for id, r := range l.images {
		v.ImageBytes[id] = r.Bytes()
	}
	return v
}
