package core

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/simulate"
)

// timed runs the model's world by the costs of a simulated setup: every order
// ends when the setup says, and everything else happens at once.
type timed struct {
	*world
	s       simulate.Setup
	now     time.Duration
	ends    map[orderOf]moment
	copies  []time.Duration // by rank: when its copy thread is done
	granted []string
}

// orderOf names an order: seqs count by life.
type orderOf struct {
	life runner.Life
	seq  uint64
}

// moment is when an order ends; those of one moment end as they were sent.
type moment struct {
	at   time.Duration
	sent int
}

func inMS(x float64) time.Duration { return time.Duration(math.Round(x * 1e6)) }

// heard gives an input's orders their ends, and notes what was given a turn.
func (x *timed) heard(as []Action) {
	var sums []orderOf
	longest := time.Duration(0)
	for _, a := range as {
		send, ok := a.(Send)
		if !ok {
			continue
		}
		at, id := x.now, orderOf{send.Life, send.Seq}
		i := x.place(send.Life.Worker)
		switch o := send.Order.(type) {
		case runner.Produce:
			at += x.takes(i, x.row(o.Row).TargetMS)
			x.grant(i, simulate.Produce, int(o.Row)-1)
		case runner.Train:
			at += x.takes(i, x.row(o.Row).DrafterMS)
			x.grant(i, simulate.Train, int(o.Row)-1)
			if o.Last {
				sums, longest = append(sums, id), max(longest, at)
			}
		case runner.Commit:
			at += x.takes(i, x.s.Trace.Costs.UpdateMS)
			x.grant(i, simulate.Commit, -1)
		case runner.Pull:
			rank := send.Life.Worker.Rank
			cost := x.s.Trace.Costs.HandOffMS
			if maker := int(o.Handle.Arena) - 1; x.s.Workers[maker].Device == x.s.Workers[i].Device {
				cost = x.s.Trace.Costs.HandOffLocalMS
			}
			at = max(at, x.copies[rank]) + inMS(cost) + inMS(x.s.Trace.Costs.OrderMS)
			x.copies[rank] = at
		}
		x.ends[id] = moment{at, len(x.ends)}
	}
	for _, id := range sums { // they end together, gradients summed
		n := float64(x.setup.drafters)
		x.ends[id] = moment{longest + inMS(x.s.Trace.Costs.SumMS*(n-1)/n), x.ends[id].sent}
	}
}

func (x *timed) place(w runner.Worker) int {
	return slices.IndexFunc(x.s.Workers, func(p simulate.Worker) bool { return p.Worker == w })
}

func (x *timed) row(r runner.Row) simulate.Row {
	return x.s.Trace.Rows[(int(r)-1)%len(x.s.Trace.Rows)]
}

func (x *timed) takes(i int, cost float64) time.Duration {
	for _, slow := range x.s.Trace.Slow {
		if slow.Device == x.s.Workers[i].Device {
			cost *= slow.Factor
		}
	}
	return inMS(cost) + inMS(x.s.Trace.Costs.OrderMS)
}

func (x *timed) grant(worker int, c simulate.Cause, row int) {
	x.granted = append(x.granted, told(x.now, worker, c, row))
}

func told(at time.Duration, worker int, c simulate.Cause, row int) string {
	return fmt.Sprintf("%12d worker %d %s %d", at, worker, c, row)
}

// play runs to the end: what takes no time first, then what ends soonest.
func (x *timed) play(t *testing.T) {
	t.Helper()
	began := x.world.now
	for x.finished == nil {
		ms := slices.DeleteFunc(x.moves(), move.fault)
		if x.bad != "" || len(ms) == 0 {
			t.Fatalf("stuck: %s\n%s", x.bad, x.history())
		}
		next := slices.MinFunc(ms, func(a, b move) int {
			x, y := x.when(a), x.when(b)
			return cmp.Or(cmp.Compare(x.at, y.at), cmp.Compare(x.sent, y.sent))
		})
		x.now = max(x.now, x.when(next).at)
		x.world.now = began.Add(x.now)
		x.apply1(next)
	}
}

// when gives the end of the order that a move works off.
func (x *timed) when(m move) moment {
	p := &x.procs[m.i]
	switch m.verb {
	case work:
		return x.ends[orderOf{p.life, p.main[0].seq}]
	case quick:
		return x.ends[orderOf{p.life, p.fast[m.n].seq}]
	}
	return moment{at: x.now, sent: -1}
}

// shared draws a setup of one node: devices with targets, drafters or both, of
// one turn or two. No two times are alike, so what happens first is certain.
func shared(r *rand.Rand) simulate.Setup {
	s := simulate.Setup{Nodes: 1, Slots: 1 + r.IntN(3), Steps: 2 + r.IntN(4), Trail: true, Trace: simulate.Trace{Format: simulate.Format,
		Costs: simulate.Costs{UpdateMS: 1 + 5*r.Float64(), SumMS: 5 * r.Float64(), OrderMS: r.Float64() / 5, HandOffMS: 2 * r.Float64(), HandOffLocalMS: r.Float64()}}}
	for range 40 {
		s.Trace.Rows = append(s.Trace.Rows, simulate.Row{Tokens: 100, TargetMS: 1 + 50*r.Float64(), DrafterMS: 1 + 50*r.Float64()})
	}
	devices := 1 + r.IntN(4)
	on := map[runner.Role][]int{}
	for d := range devices {
		s.Turns = append(s.Turns, 1+r.IntN(5)/4)
		s.Trace.Slow = append(s.Trace.Slow, simulate.Slow{Device: d, Factor: 0.8 + 0.4*r.Float64()})
		for _, role := range []runner.Role{runner.Target, runner.Drafter} {
			if r.IntN(4) > 0 || len(on[role]) == 0 && d == devices-1 {
				on[role] = append(on[role], d)
			}
		}
	}
	for _, role := range []runner.Role{runner.Target, runner.Drafter} {
		for i, d := range on[role] {
			s.Workers = append(s.Workers, simulate.Worker{Worker: runner.Worker{Role: role, Rank: runner.Rank(i)}, Device: d})
		}
	}
	s.RowsPerStep = len(on[runner.Drafter]) * (1 + r.IntN(5))
	return s
}

// begin makes the model of a setup.
func (x *timed) begin() {
	s, targets := x.s, 0
	for _, w := range s.Workers {
		if w.Worker.Role == runner.Target {
			targets++
		}
	}
	drafters := len(s.Workers) - targets
	x.world = newWorld(&setup{targets: targets, drafters: drafters, micros: s.RowsPerStep / drafters, steps: s.Steps, slots: uint32(s.Slots), budget: 9, tune: func(c *Config) {
		c.Devices = map[string]int{}
		for i := range c.Workers {
			d := s.Workers[i].Device
			c.Workers[i].Device = fmt.Sprint("gpu", d)
			c.Devices[c.Workers[i].Device] = s.Turns[d]
		}
	}}, 0, 0)
	x.ends, x.copies, x.after = map[orderOf]moment{}, make([]time.Duration, drafters), x.heard
}

// TestSimulatedAlike: one history of costs, fed to the core and simulated,
// gives the same turns to the same workers at the same times.
func TestSimulatedAlike(t *testing.T) {
	turns := 0
	for seed := range uint64(200) {
		s := shared(rand.New(rand.NewPCG(seed, 11)))
		res, err := simulate.Run(s)
		if err != nil {
			t.Fatal(err)
		}
		var want []string
		for _, sp := range res.Spans {
			if sp.Cause.Works() {
				want = append(want, told(sp.From, sp.Worker, sp.Cause, sp.Row))
			}
		}
		x := &timed{s: s}
		x.begin()
		x.play(t)
		slices.Sort(want)
		slices.Sort(x.granted)
		for i := range max(len(want), len(x.granted)) {
			if i >= len(want) || i >= len(x.granted) || want[i] != x.granted[i] {
				t.Fatalf("seed %d: turn %d: simulated %q, the core gave %q\n%+v", seed, i, want[i:min(i+3, len(want))], x.granted[i:min(i+3, len(x.granted))], s)
			}
			turns++
		}
	}
	t.Logf("%d turns alike", turns)
}
