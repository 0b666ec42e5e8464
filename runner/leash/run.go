package leash

import (
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"syscall"
)

// Run starts cmd, which exec.CommandContext made, calls started once it is tied
// or has failed, and waits for it. The command leads a process group that ends
// with cmd's context, with the command, and with this process, however that
// dies: the parent-death signal reaches the command alone, the leash what it
// started too. The thread is kept until the child is reaped, as the parent-death
// signal is bound to the thread that started it.
func Run(cmd *exec.Cmd, started func()) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	if err := cmd.Start(); err != nil {
		started()
		return err
	}
	l, err := New(cmd.Process.Pid)
	started()
	if err != nil { // one without is not let live
		return errors.Join(fmt.Errorf("tie its group to this process: %w", err), cmd.Cancel(), cmd.Wait())
	}
	defer l.Release()
	return cmd.Wait()
}
