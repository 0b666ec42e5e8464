package up

import (
	"context"

	"github.com/dflash-runner/dflash-runner/runner/pyenv"
)

// environmentStage gives the interpreter and the Python tree, making the
// environment where there is none.
func (u *up) environmentStage(ctx context.Context) error {
	cache, err := pyenv.DefaultCacheDir()
	if err != nil {
		return err
	}
	u.cache = cache
	u.board.begin("environment")
	env, err := pyenv.Ensure(ctx, pyenv.Worker(cache, u.config.Python.Interpreter), func(p pyenv.Progress) {
		u.board.count("environment", p.DoneBytes, p.TotalBytes)
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
	u.python = python{interpreter: env.Python, tree: tree, fingerprint: env.Fingerprint}
	return nil
}
