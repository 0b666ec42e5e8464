package drive_test

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/dflash-runner/dflash-runner/runner/core"
)

// kind is a kind of fault.
type kind int

// The kinds: first of one worker, then, from firstOfAll, of the whole run.
const (
	kKill       kind = iota // SIGKILL
	kStop                   // SIGSTOP
	kPause                  // SIGSTOP, SIGCONT
	kDelay                  // what it does takes long, within its deadline
	kLane                   // garbage, a closed lane, a flood, an answer to no order
	kLie                    // a wrong version, row, slot, step or type
	kRefuse                 // the launch, the certificate or the order fails
	kSupervisor             // the supervisor is killed, its journal cut where it was not durable
	kTerm                   // SIGTERM
	kQuick                  // down --quick
	kJournal                // the journal cannot be written or synced
	kDisk                   // no room for a checkpoint, at any byte
	kMemory                 // no memory for an image
	kScheduler              // the scheduler is late, wrong or absent
	numKinds

	firstOfAll = kSupervisor
)

var kindNames = [...]string{"kill", "stop", "pause", "delay", "lane", "lie", "refuse", "superv.", "term", "quick", "journal", "disk", "memory", "schedul."}

func (k kind) String() string { return kindNames[k] }

var (
	stateNames = []string{"absent", "launching", "waiting", "warming", "certified", "ready", "draining", "lost", "backoff", "gone", "failed"}
	phaseNames = []string{"apart", "joining", "open", "committing", "aborting"}
)

// cell is a worker's state, the step's phase and a kind of fault.
type cell struct {
	state, phase int
	kind         kind
}

func cellOf(state, phase string, k kind) cell {
	return cell{slices.Index(stateNames, state), slices.Index(phaseNames, phase), k}
}

func (c cell) String() string {
	return fmt.Sprintf("%s, %s, %v", stateNames[c.state], phaseNames[c.phase], c.kind)
}

// never says why a worker cannot be in a state while the drafters are in a
// phase; empty: it can.
func never(state, phase string) string {
	switch {
	case state == "absent":
		return "the first input starts every worker"
	case state == "failed":
		return "the budget here is never spent: what follows is TestBudget's"
	case (state == "draining" || state == "gone") && (phase == "joining" || phase == "committing"):
		return "workers are drained once no step is on its way"
	}
	return ""
}

// why says why a cell cannot happen; empty: it can.
func (c cell) why() string {
	state := stateNames[c.state]
	if why := never(state, phaseNames[c.phase]); why != "" {
		return why
	}
	switch k := c.kind; {
	case k >= firstOfAll:
		return ""
	case state == "backoff" || state == "gone":
		return "there is no process"
	case state == "launching" && (k == kLane || k == kLie || k == kPause):
		return "there is no lane yet, and a pause is a delay"
	case state == "waiting" && (k == kDelay || k == kLie || k == kRefuse):
		return "it was asked for nothing"
	case state == "warming" && k == kLie:
		return "a certificate that is not true is refused: kRefuse"
	}
	return ""
}

// table counts strikes by cell.
type table struct {
	counts     [11][5][numKinds]int
	seen       [11][5]int // looks that found a worker so
	histories  int
	withPlugin int            // of them
	did        map[string]int // what plugins did, and what became of verdicts
}

func (a *table) at(c cell) int { return a.counts[c.state][c.phase][c.kind] }

func (a *table) add(c cell) { a.counts[c.state][c.phase][c.kind]++ }

// see notes in which states workers are.
func (a *table) see(v core.View) {
	for _, x := range v.Workers {
		c := cellOf(x.State, v.Phase, 0)
		a.seen[c.state][c.phase]++
	}
}

// cells gives all of them.
func cells() (all []cell) {
	for s := range stateNames {
		for p := range phaseNames {
			for k := range numKinds {
				all = append(all, cell{s, p, k})
			}
		}
	}
	return all
}

// empty gives the cells that can happen and were struck so often at most, by
// their number.
func (a *table) empty(most int) (all []int) {
	for i, c := range cells() {
		if c.why() == "" && a.at(c) <= most {
			all = append(all, i)
		}
	}
	return all
}

// scarce gives what the nth history is about, as a seed names it: nothing at
// first and now and then, else the cells in turn, those never struck before others.
func (a *table) scarce(n int) uint64 {
	all := a.empty(0)
	if len(all) == 0 {
		all = a.empty(math.MaxInt)
	}
	if n < leastHistories || n%4 == 0 {
		return 0
	}
	return uint64(all[n%len(all)]) + 1
}

// judge wants no cell empty that can happen, and none seen that cannot.
func (a *table) judge(t *testing.T) {
	t.Helper()
	for _, i := range a.empty(0) {
		c := cells()[i]
		t.Errorf("never struck: %v (seen %d times)", c, a.seen[c.state][c.phase])
	}
	for _, what := range a.undone() {
		t.Errorf("never came: %s", what)
	}
	for s, state := range stateNames {
		for p, phase := range phaseNames {
			if why := never(state, phase); why != "" && a.seen[s][p] > 0 {
				t.Errorf("%s, %s was seen %d times, although %s", state, phase, a.seen[s][p], why)
			}
		}
	}
}

// String is the table: a line a worker's state and phase, a column a kind.
func (a *table) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%-22s", "worker, step")
	for _, name := range kindNames {
		fmt.Fprintf(&b, "%9s", name)
	}
	for s, state := range stateNames {
		for p, phase := range phaseNames {
			if never(state, phase) != "" {
				continue
			}
			fmt.Fprintf(&b, "\n%-22s", state+", "+phase)
			for k := range numKinds {
				if c := (cell{s, p, k}); c.why() != "" {
					fmt.Fprintf(&b, "%9s", "-")
				} else {
					fmt.Fprintf(&b, "%9d", a.at(c))
				}
			}
		}
	}
	reasons := map[string]bool{}
	for _, c := range cells() {
		reasons[c.why()] = true
	}
	delete(reasons, "")
	for _, why := range slices.Sorted(maps.Keys(reasons)) {
		fmt.Fprintf(&b, "\n- %s", why)
	}
	return b.String() + a.plugins()
}
