package command

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"bowstring/schema"
)

// DemoCmd is bowstring demo. The demo itself is a module of the Python package,
// since it is what a training script is; this finds the Python that goes with
// the program and becomes it.
type DemoCmd struct {
	Args []string `arg:"" optional:"" help:"Arguments of the demo: --dir DIR, --count N, --epochs N."`
}

// Run becomes the demo: signals reach it, and its status is the command's.
func (c *DemoCmd) Run(app *App) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("finding this program: %w", err)
	}
	python, err := pythonBeside(self)
	if err != nil {
		return err
	}
	args := append([]string{python, "-c", demoStart, "--bowstring", self}, c.Args...)
	return fmt.Errorf("starting %s: %w", python, syscall.Exec(python, args, os.Environ()))
}

// demoStart says what is missing where a Python without the package was found.
const demoStart = `import sys
try:
    from bowstring.demo.__main__ import main
except ModuleNotFoundError as missing:
    sys.exit(f"bowstring: {sys.executable}: {missing}; the demo is part of the Python package: pip install 'bowstring[torch]'")
try:
    sys.exit(main())
except KeyboardInterrupt:
    sys.exit("stopped")
`

// pythonBeside is the interpreter of the environment that the program was
// installed into, or else the first one on the path.
func pythonBeside(self string) (string, error) {
	for _, name := range []string{"python3", "python"} {
		beside := filepath.Join(filepath.Dir(self), name)
		if _, err := os.Stat(beside); err == nil {
			return beside, nil
		} else if !errors.Is(err, fs.ErrNotExist) {
			return "", fmt.Errorf("finding Python: %w", err)
		}
	}
	found, err := exec.LookPath("python3")
	if err != nil {
		return "", fmt.Errorf("%w: the demo is written in Python, and there is none beside the program or on the "+
			"path; pip install 'bowstring[torch]' brings both", schema.ErrNotFound)
	}
	return found, nil
}
