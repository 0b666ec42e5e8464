package worker

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// TestLeashIsOursAlone: no file that a child has is armed, since a child that
// dies beside its host would be the last to close it, and too early.
func TestLeashIsOursAlone(t *testing.T) {
	c, err := startChild(childSpec{argv: []string{"sleep", "300"}, nonce: "leash", lane: true, stdin: true, lineLimit: 1 << 10,
		stdout: func([]byte, bool) {}, stderr: func([]byte, bool) {}})
	if err != nil {
		t.Fatal(err)
	}
	armed := func(pid string) (n int) {
		infos, err := filepath.Glob(fmt.Sprintf("/proc/%s/fdinfo/*", pid))
		if err != nil || len(infos) < 4 {
			t.Fatalf("files of %s: %v, %v", pid, infos, err)
		}
		for _, info := range infos {
			text, err := os.ReadFile(info)
			if err != nil {
				continue // closed since
			}
			_, rest, _ := strings.Cut(string(text), "flags:\t")
			flags, err := strconv.ParseInt(strings.Fields(rest)[0], 8, 64)
			if err != nil {
				t.Fatalf("%s: %q: %v", info, text, err)
			}
			if flags&unix.O_ASYNC != 0 {
				n++
			}
		}
		return n
	}
	if n := armed(strconv.Itoa(c.pid)); n != 0 {
		t.Errorf("the child has %d armed files", n)
	}
	if err := syscall.Kill(-c.pid, syscall.SIGKILL); err != nil {
		t.Error(err)
	}
	<-c.done
	if c.status.Signal != unix.SIGKILL {
		t.Errorf("the child ended with %v", c.status)
	}
}
