package runner

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// TestIncidents: the first cause stands first, consequences after it, and what
// several said alike is one.
func TestIncidents(t *testing.T) {
	at := func(s int) time.Time { return time.Unix(1000+int64(s), 0) }
	death := func(role Role, rank Rank, s int, incident uint64, cause Cause, message string, forced bool) Failure {
		return Failure{Worker: Worker{role, rank}, Generation: 1, At: at(s), Incident: incident, Cause: cause, Message: message, ForcedBySelf: forced}
	}
	for name, c := range map[string]struct {
		all  []Failure
		want string
	}{
		"none": {nil, ""},
		"apart": {[]Failure{death(Target, 0, 0, 1, CauseOOM, "killed", false), death(Drafter, 0, 1, 2, CauseExit, "code 3", false)},
			"target/0; drafter/0"},
		"the cause was reported last": {[]Failure{death(Drafter, 0, 2, 1, CauseCUDA, "NCCL error", true), death(Drafter, 1, 3, 1, CauseOOM, "killed", false)},
			"drafter/1 > drafter/0"},
		"both by themselves": {[]Failure{death(Drafter, 0, 2, 1, CauseExit, "code 3", false), death(Drafter, 1, 1, 1, CauseOOM, "killed", false)},
			"drafter/1 > drafter/0"},
		"consequences alike are told in order": {[]Failure{death(Drafter, 0, 0, 1, CauseOOM, "killed", false), death(Drafter, 1, 1, 1, CauseCUDA, "NCCL error 1", true), death(Drafter, 2, 2, 1, CauseCUDA, "NCCL error 2", true)},
			"drafter/0 > drafter/1 drafter/2"},
		"all say the same": {[]Failure{death(Target, 0, 0, 1, CausePython, "no file at 0x1", false), death(Drafter, 0, 1, 2, CausePython, "no file at 0x2", false), death(Drafter, 1, 2, 3, CausePython, "no file at 0x3", false)},
			"target/0 = drafter/0 drafter/1"},
		"the same worker again": {[]Failure{death(Target, 0, 0, 1, CausePython, "no file", false), death(Target, 0, 1, 2, CausePython, "no file", false)},
			"target/0; target/0"},
		"the same much later": {[]Failure{death(Target, 0, 0, 1, CausePython, "no file", false), death(Drafter, 0, 100, 2, CausePython, "no file", false)},
			"target/0; drafter/0"},
		"a number of an earlier supervisor": {[]Failure{death(Target, 0, 0, 1, CauseOOM, "killed", false), death(Drafter, 0, 3600, 1, CauseExit, "code 3", false)},
			"target/0; drafter/0"},
		"reports without numbers": {[]Failure{death(Target, 0, 0, 0, CauseOOM, "killed", false), death(Drafter, 0, 1, 0, CauseExit, "code 3", false)},
			"target/0; drafter/0"},
	} {
		var got []string
		for _, in := range Incidents(c.all) {
			s := in.First.Worker.String()
			for _, f := range in.Same {
				s += map[bool]string{true: " = ", false: " "}[!strings.Contains(s, "=")] + f.Worker.String()
			}
			for _, f := range in.After {
				s += map[bool]string{true: " > ", false: " "}[!strings.Contains(s, ">")] + f.Worker.String()
			}
			got = append(got, s)
		}
		if g := strings.Join(got, "; "); g != c.want {
			t.Errorf("%s: got %s, want %s", name, g, c.want)
		}
	}
}

func TestFingerprint(t *testing.T) {
	for _, c := range [][2]string{
		{"row 12 at 0x7f00aa is bad", "row 13 at 0x7fff00 is bad"},
		{"tensor of shape [3, 4]: want f32", "tensor of shape [30, 41]: want f32"},
		{"broken \xff 1", "broken \xff 2"},
	} {
		if a, b := Fingerprint(c[0]), Fingerprint(c[1]); a != b {
			t.Errorf("%q and %q differ: %q, %q", c[0], c[1], a, b)
		}
	}
	if a, b := Fingerprint("no file a"), Fingerprint("no file b"); a == b {
		t.Errorf("two messages are one: %s", fmt.Sprint(a, b))
	}
}
