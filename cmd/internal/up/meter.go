package up

import (
	"sync"
	"syscall"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/admin"
)

// The parts of a supervisor's life that its CPU time is told by, in order.
const (
	partStart  = "start"   // configuration, environment, target, data
	partLaunch = "launch"  // of workers, until the first warms up
	partWarmUp = "warm_up" // until the first step is decided
	partTrain  = "train"   // from there to the last step that is decided
	partFinish = "finish"  // last evaluation, saving, draining
	partExport = "export"  // and all that comes after the loop
)

// meter divides this process's CPU time by what it was doing, so that what rows
// cost is known apart from what comes before and after them. Any goroutine may
// call its methods.
type meter struct {
	now func() float64 // seconds of CPU time so far

	mu     sync.Mutex // guards below
	part   string
	since  float64 // CPU time when the part began
	used   map[string]float64
	last   float64 // CPU time at the newest decision, within partTrain
	rows   uint64  // of the steps decided after the first
	begins bool    // a step was decided
}

func newMeter(now func() float64) *meter {
	return &meter{now: now, part: partStart, used: map[string]float64{}}
}

// enter ends the present part and begins another.
func (m *meter) enter(part string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.turn(part, m.now())
}

// warms begins warm-up, where workers were being launched.
func (m *meter) warms() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.part == partLaunch {
		m.turn(partWarmUp, m.now())
	}
}

// turn books what the present part has used. m.mu is held.
func (m *meter) turn(part string, at float64) {
	m.used[m.part] += at - m.since
	m.part, m.since = part, at
}

// observe counts the rows of decided steps. The first step's rows were made
// before it was decided, and belong to warm-up with what they cost.
func (m *meter) observe(e runner.Event) {
	if e.Name != "step decided" {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.last = m.now()
	if !m.begins {
		m.begins = true
		m.turn(partTrain, m.last)
		return
	}
	m.rows += uint64(e.Figures["rows"])
}

// leave ends the loop's parts: what came after the last decision is no row's.
func (m *meter) leave() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.part == partTrain {
		m.turn(partFinish, m.last)
	}
	m.turn(partExport, m.now())
}

// picture gives what every part used until now.
func (m *meter) picture() admin.SupervisorCPU {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.turn(m.part, m.now())
	p := admin.SupervisorCPU{Parts: map[string]float64{}, Rows: m.rows}
	for part, s := range m.used {
		p.Parts[part] = s
	}
	if m.rows > 0 {
		ms := 1000 * m.used[partTrain] / float64(m.rows)
		p.RowMS = &ms
	}
	return p
}

// cpuSeconds is what this process has used, its workers not counted.
func cpuSeconds() float64 {
	var r syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &r) != nil {
		return 0
	}
	return float64(r.Utime.Sec+r.Stime.Sec) + float64(r.Utime.Usec+r.Stime.Usec)/1e6
}
