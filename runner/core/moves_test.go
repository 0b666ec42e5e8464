package core

import (
	"fmt"
	"slices"
	"strings"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/life"
)

// verb is what can happen in the world besides the core's own doing.
type verb uint8

const (
	prove   verb = iota // a worker's warm-up ends in a certificate
	work                // a worker works off the order at the head of its queue
	quick               // a worker's thread takes a pull or an abort
	broken              // a sum or a join breaks off, because a peer is dead
	syncs               // the journal becomes durable
	publish             // a checkpoint's rename becomes durable
	reap                // a dead process is reaped
	crash               // a worker dies, its share of a running sum lost
	crashIn             // a worker dies, its share of a running sum given
	outage              // the supervisor dies, what was not synced is lost
	outageK             // the supervisor dies, what was not synced is kept all the same
	outageP             // likewise, and a checkpoint under way was renamed in time
	stop                // a graceful stop is asked for
	judge               // a verdict about a death comes: the n-th kind of answer to the i-th question
	bar                 // the device of the i-th worker is barred
	wait                // time passes, until every backoff is over
)

var verbNames = [...]string{"prove", "work", "quick", "broken", "sync", "publish", "reap", "crash", "crash in sum", "outage", "outage, kept", "outage, published", "stop", "verdict", "bar", "wait"}

// move is one thing that can happen.
type move struct {
	verb verb
	i, n int // a worker; one of its quick orders
}

func (m move) String() string { return fmt.Sprintf("%s %d %d", verbNames[m.verb], m.i, m.n) }

// fault reports whether the move is bad luck: a run must not need it.
func (m move) fault() bool { return m.verb >= crash && m.verb != wait }

// moves gives everything that can happen now.
func (w *world) moves() (ms []move) {
	if w.finished != nil || w.bad != "" {
		return nil
	}
	for i := range w.procs {
		ms = append(ms, w.movesOf(i)...)
	}
	if len(w.syncing) > 0 {
		ms = append(ms, move{verb: syncs})
	}
	if w.sending != 0 {
		ms = append(ms, move{verb: publish})
	}
	if w.stops > 0 {
		ms = append(ms, move{verb: stop})
	}
	ms = append(ms, w.verdictMoves()...)
	if w.outages > 0 {
		ms = append(ms, move{verb: outage})
		if w.durable < len(w.journal)-w.base {
			ms = append(ms, move{verb: outageK})
		}
		if w.sending != 0 {
			ms = append(ms, move{verb: outageP})
		}
	}
	return ms
}

func (w *world) movesOf(i int) (ms []move) {
	p := &w.procs[i]
	if p.up && p.dead {
		return []move{{verb: reap, i: i}}
	}
	if !p.up {
		return nil
	}
	if p.warming {
		ms = append(ms, move{verb: prove, i: i})
	}
	if w.can(i) {
		ms = append(ms, move{verb: work, i: i})
	}
	for n := range p.fast {
		ms = append(ms, move{verb: quick, i: i, n: n})
	}
	t, last := p.head().(runner.Train)
	last = last && t.Last
	if (last || p.head() != nil && is[runner.Join](p.head())) && w.all(func(*proc) bool { return true }) && !w.all((*proc).alive) {
		ms = append(ms, move{verb: broken, i: i})
	}
	if w.crashes > 0 {
		ms = append(ms, move{verb: crash, i: i})
		if last {
			ms = append(ms, move{verb: crashIn, i: i})
		}
	}
	return ms
}

// apply lets a move happen.
func (w *world) apply1(m move) {
	w.note("%s", m)
	if m.verb == judge || m.verb == bar || m.verb == wait {
		w.pass(m)
		return
	}
	switch p := &w.procs[m.i]; m.verb {
	case prove:
		p.warming, p.certified = false, true
		w.give(Certified{Life: p.life})
	case work:
		w.work(m.i)
	case quick:
		w.quick(m.i, m.n)
	case broken:
		k := p.main[0]
		p.main = p.main[1:]
		w.reply(p, k, runner.Failed{Kind: runner.Unavailable, Message: "connection reset by peer"})
	case syncs:
		w.syncing, w.durable = w.syncing[1:], w.syncing[0]
		w.give(Durable{UpTo: uint64(w.durable)})
	case publish:
		w.renamed()
	case reap:
		w.reap(p)
	case crash, crashIn:
		w.crashed(p, m.verb == crashIn)
	case stop:
		w.stops--
		w.give(StopRequested{Reason: "a signal"})
	default:
		w.outage(m.verb)
	}
	if w.bad == "" {
		w.check()
	}
}

func (w *world) crashed(p *proc, gave bool) {
	w.crashes--
	if t, ok := p.head().(runner.Train); gave || p.reduced != 0 {
		c := p.reduced
		if ok && gave {
			c = t.Communicator
		}
		w.shares = append(w.shares, share{c, p.life.Worker.Rank})
	}
	l := p.life
	// Every other death is only heard of when it is reaped.
	if w.die(p); p.certified && !(w.setup.silent && w.crashes%2 == 0) {
		w.give(LaneClosed{Life: l})
	}
}

func (w *world) renamed() {
	id := w.sending
	w.onDisk()
	if m := w.pictureOf(id); m != nil {
		w.give(Published{Image: id, Name: nameOf(m.step)})
	}
}

func (w *world) onDisk() {
	m := w.pictureOf(w.sending)
	w.sending = 0
	if m == nil {
		w.fault("image published was dropped meanwhile")
		return
	}
	w.disk = slices.DeleteFunc(slices.Clone(w.disk), func(d picture) bool { return d.step == m.step })
	w.disk = append(w.disk, *m)
	slices.SortFunc(w.disk, func(a, b picture) int { return int(a.step) - int(b.step) })
}

// outage ends the supervisor, and with it all workers (I8), and starts it again.
func (w *world) outage(v verb) {
	w.outages--
	if v == outageP {
		w.onDisk()
	}
	if v == outage {
		w.journal = w.journal[: w.base+w.durable : w.base+w.durable]
	}
	w.explained()
	w.start(resumeOf(w.journal, w.disk))
}

// resumeOf reads a journal as the product's reader does.
func resumeOf(rs []runner.Record, disk []picture) *Resume {
	r, named := &Resume{Lineage: 1}, map[string]runner.Chain{}
	for _, rec := range rs {
		switch rec := rec.(type) {
		case runner.ArrangeRecord:
			r.Arranged = append(r.Arranged, rec)
		case runner.PlanRecord:
			i := int(rec.Plan.Step) - 1
			r.Plans = append(r.Plans[:min(i, len(r.Plans))], append([]runner.PlanRecord{rec}, r.Plans[min(i+1, len(r.Plans)):]...)...)
		case runner.RestoreRecord:
			r.Lineage, r.Committed = rec.Lineage, rec.Step
			r.Commits = slices.DeleteFunc(r.Commits, func(x runner.CommitRecord) bool { return x.Step > rec.Step })
			r.Evaluations = slices.DeleteFunc(r.Evaluations, func(x runner.EvaluationRecord) bool { return x.Step > rec.Step })
		case runner.CommitRecord:
			r.Committed = rec.Step
			r.Commits = append(r.Commits, rec)
		case runner.EvaluationRecord:
			r.Evaluations = append(r.Evaluations, rec)
		case runner.CheckpointRecord:
			named[rec.Name] = rec.Chain
		}
	}
	for _, p := range r.Plans {
		if p.Plan.Step <= r.Committed {
			r.Rows += uint64(len(p.Rows))
		}
	}
	for _, d := range disk {
		rec := runner.CheckpointRecord{Step: d.step, Name: nameOf(d.step), Chain: d.chain, Image: digest("image" + d.value)}
		switch {
		case named[rec.Name] == d.chain:
			r.Checkpoints = append(r.Checkpoints, rec)
		case d.step <= r.Committed: // renamed just before the supervisor died
			r.Adopted = append(r.Adopted, rec)
		default:
			r.Strays = append(r.Strays, rec.Name)
		}
	}
	return r
}

// check asks of every state what must always hold.
func (w *world) check() {
	c := w.core
	if w.finished != nil {
		w.checkEnd()
		return
	}
	for _, i := range c.ranks {
		p, k := &w.procs[i], &c.workers[i]
		if !p.alive() || !p.certified || k.life.State == life.Lost {
			continue
		}
		if want := strings.Join(w.applied[:p.at+1], ""); p.value != want {
			w.fault("I5: %v at step %d holds %q, want %q", p.life, p.at, p.value, want)
		}
		if k.has && k.at > 0 && (p.at > c.decided || p.at+1 < c.decided) {
			w.fault("I5: %v is at step %d, decided is %d", p.life, p.at, c.decided)
		}
	}
	w.explained()
}

// explained checks rule 7: a checkpoint on the disk is explained by the plans
// that are durable.
func (w *world) explained() {
	for _, d := range w.disk {
		ok := false
		for _, rec := range w.journal[:w.base+w.durable] {
			if p, is := rec.(runner.PlanRecord); is && p.Plan.Step == d.step && p.Chain == d.chain {
				ok = true
			}
		}
		if !ok {
			w.fault("rule 7: the checkpoint of step %d is not explained by the durable journal", d.step)
		}
	}
}

// settled gives how often each sample is settled in the surviving lineage.
func (w *world) settled() (times map[runner.Sample]int, last runner.Step) {
	times = map[runner.Sample]int{}
	plans := map[runner.Step][]runner.RowPlan{}
	var commits [][]runner.RowPlan
	skipped := map[runner.Sample]bool{}
	for _, rec := range w.journal {
		switch rec := rec.(type) {
		case runner.PlanRecord:
			plans[rec.Plan.Step] = rec.Rows
		case runner.SkipRecord:
			skipped[rec.Samples[0]] = true
		case runner.RestoreRecord:
			if int(rec.Step) > len(commits) {
				w.fault("I6: restore to step %d, %d are committed", rec.Step, len(commits))
				return times, 0
			}
			commits = commits[:rec.Step]
		case runner.CommitRecord:
			if int(rec.Step) != len(commits)+1 {
				w.fault("I6: step %d is committed after %d", rec.Step, len(commits))
			}
			commits = append(commits, plans[rec.Step])
		}
	}
	for _, rows := range commits {
		for _, r := range rows {
			times[r.Pieces[0].Sample]++
		}
	}
	for x := range skipped {
		times[x]++
	}
	return times, runner.Step(len(commits))
}

// settledOnce checks, after each record, that no sample is settled twice.
func (w *world) settledOnce() {
	times, _ := w.settled()
	for x, n := range times {
		if n > 1 {
			w.fault("I6: sample %d is settled %d times", x, n)
		}
	}
}

// checkEnd asks of a finished run that all of it was trained, or all that was
// decided when it was stopped, and that this is what the disk holds.
func (w *world) checkEnd() {
	w.checkLosses()
	times, last := w.settled()
	if w.anyEnd && w.finished.Code != runner.ExitDone {
		return
	}
	switch w.finished.Code {
	case runner.ExitDone:
		if int(last) != w.setup.steps {
			w.fault("I6: finished after step %d of %d", last, w.setup.steps)
		}
		for x := range runner.Sample(w.setup.drafters * w.setup.micros * w.setup.steps) {
			if times[x] != 1 {
				w.fault("I6: at the end sample %d is settled %d times", x, times[x])
			}
		}
	case runner.ExitStopped:
	case runner.ExitFailed:
		if r := w.finished.Reason; !w.stopped || !strings.Contains(r, "no more of this") && !strings.Contains(r, "it is hot") {
			w.fault("finished with code %d: %s", w.finished.Code, w.finished.Reason)
			return
		}
		if last = 0; len(w.disk) > 0 { // who held the newest state may be what died
			last = w.disk[len(w.disk)-1].step
		}
	default:
		w.fault("finished with code %d: %s", w.finished.Code, w.finished.Reason)
		return
	}
	want := strings.Join(w.applied[:last+1], "")
	if last == 0 {
		return
	}
	if len(w.disk) == 0 || w.disk[len(w.disk)-1].value != want {
		w.fault("I7: the disk holds %+v, want step %d with %q", w.disk, last, want)
	}
}
