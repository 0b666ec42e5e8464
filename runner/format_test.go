package runner

import (
	"strings"
	"testing"
)

func TestWrongFormat(t *testing.T) {
	for got, later := range map[string]bool{
		"x/2": true, "x/10": true, "x/0": false, "x/-2": false, "x": false, "": false, "y/2": false, "x/": false, "x/two": false, "x/2/1": false,
		"x/99999999999999999999": false, // no number of ours
	} {
		e := WrongFormat("x/1", got)
		if e.Kind != Invalid || !strings.Contains(e.Msg, `want "x/1", got "`) || strings.Contains(e.Msg, "later version") != later || (e.Hint != "") != later {
			t.Errorf("%q: got %q, hint %q", got, e.Msg, e.Hint)
		}
	}
}
