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

// DemoCmd is bowstring demo. The demo is a module of the Python package, because it is
// what a training script looks like. The command finds the Python that belongs to the
// program and replaces its own process by it.
type DemoCmd struct {
	Args []string `arg:"" optional:"" help:"Arguments of the demo: --dir DIR, --count N, --epochs N."`
}

// Run replaces the process by the demo. Signals therefore reach the demo, and its exit
// status is the command's.
func (c *DemoCmd) Run(app *App) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("finding this program: %w", err)
	}
	return becomePython(self, fmt.Sprintf(pythonStart, "bowstring.demo.__main__", "bowstring[torch]", ""),
		append([]string{"--bowstring", self}, c.Args...)...)
}

// PsCmd is bowstring ps. The Python package starts the servers that it lists, and knows
// where they are.
type PsCmd struct {
	Args []string `arg:"" optional:"" help:"--json prints an object for each server."`
}

// Run replaces the process by the Python package's command.
func (c *PsCmd) Run() error { return becomeOwnCommand("ps", c.Args) }

// StopCmd is bowstring stop.
type StopCmd struct {
	Args []string `arg:"" optional:"" help:"Stores whose servers are ended, as ps lists them (default: all)."`
}

// Run replaces the process by the Python package's command.
func (c *StopCmd) Run() error { return becomeOwnCommand("stop", c.Args) }

// becomeOwnCommand replaces the process by a command on the servers that bowstring.open
// has started. It returns only with an error.
func becomeOwnCommand(name string, args []string) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("finding this program: %w", err)
	}
	return becomePython(self, fmt.Sprintf(pythonStart, "bowstring._local.commands", "bowstring", "sys.argv[1:]"),
		append([]string{name}, args...)...)
}

// becomePython replaces the process by Python with the given program and arguments. It
// returns only with an error.
func becomePython(self, start string, args ...string) error {
	python, err := pythonNextTo(self)
	if err != nil {
		return err
	}
	args = append([]string{python, "-c", start}, args...)
	return fmt.Errorf("starting %s: %w", python, syscall.Exec(python, args, os.Environ()))
}

// pythonStart calls a module's main. If the Python that was found lacks the package, it
// prints how to install it, instead of a traceback.
const pythonStart = `import sys
try:
    from %[1]s import main
except ModuleNotFoundError as missing:
    sys.exit(f"bowstring: {sys.executable}: {missing}; this command is part of the Python package: pip install '%[2]s'")
try:
    sys.exit(main(%[3]s))
except KeyboardInterrupt:
    sys.exit("stopped")
`

// pythonNextTo returns the interpreter in the folder of the program, which is that of the
// environment into which both were installed. If there is none it returns the first
// python3 of the path.
func pythonNextTo(self string) (string, error) {
	for _, name := range []string{"python3", "python"} {
		sibling := filepath.Join(filepath.Dir(self), name)
		if _, err := os.Stat(sibling); err == nil {
			return sibling, nil
		} else if !errors.Is(err, fs.ErrNotExist) {
			return "", fmt.Errorf("finding Python: %w", err)
		}
	}
	found, err := exec.LookPath("python3")
	if err != nil {
		return "", fmt.Errorf("%w: this command is written in Python, and there is none beside the program or on the "+
			"path; pip install 'bowstring[torch]' brings both", schema.ErrNotFound)
	}
	return found, nil
}
