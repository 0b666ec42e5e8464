package up

import (
	"context"

	"github.com/dflash-runner/dflash-runner/runner/admin"
	"github.com/dflash-runner/dflash-runner/runner/pyenv"
)

// environmentStage gives the interpreter and the Python tree, making the
// environment where there is none; once a run.
func (u *up) environmentStage(ctx context.Context) error {
	if u.python.interpreter != "" {
		return nil
	}
	cache, err := pyenv.DefaultCacheDir()
	if err != nil {
		return err
	}
	u.cache = cache
	u.board.begin("environment")
	env, err := pyenv.Ensure(ctx, pyenv.Worker(cache, u.config.Python.Interpreter), func(p pyenv.Progress) {
		u.making(p)
		u.note("environment", p.Message)
	})
	if err != nil {
		return err
	}
	u.environment = env
	for _, w := range env.Warnings {
		u.warn("environment", w)
	}
	if env.Made {
		u.board.done("environment")
	} else {
		u.board.reused("environment")
	}
	tree, err := pyenv.Tree(cache)
	if err != nil {
		return err
	}
	if err := u.checkTorch(env.Packages["torch"]); err != nil {
		return err
	}
	u.python = python{interpreter: env.Python, tree: tree, fingerprint: env.Fingerprint}
	return nil
}

// making shows how far an environment is. Only what is downloaded is counted;
// when all of it is there, it is still to be unpacked.
func (u *up) making(p pyenv.Progress) {
	phase := p.Stage
	if phase == "wait" {
		phase = admin.PhaseElsewhere
	}
	if p.TotalBytes > 0 {
		phase = "download"
	}
	if p.TotalBytes > 0 && p.DoneBytes >= p.TotalBytes {
		phase = "unpack"
	}
	u.board.enter("environment", phase)
	if phase == "download" {
		u.board.count("environment", p.DoneBytes, p.TotalBytes)
	}
}
