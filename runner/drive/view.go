package drive

import (
	"maps"

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
}

// view makes a View. From the loop alone.
func (l *Loop) view() View {
	v := View{View: l.core.View(), Scheduler: l.guard.scheduler.Name(), Pids: map[runner.Life]int{},
		ArenaBytes: map[runner.Arena]uint64{}, ImageBytes: map[core.ImageID]uint64{}, Worse: maps.Clone(l.degrade)}
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
