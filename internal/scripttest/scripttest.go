// Package scripttest runs the scripts of command-line programs, in testdata/script of the package under test.
package scripttest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"bowstring/internal/leaktest"
)

// Command is a command of scripts.
type Command = func(ts *testscript.TestScript, neg bool, args []string)

// leakChecked fails a run of tests that leaves goroutines.
type leakChecked struct{ *testing.M }

// Run checks for goroutines after all tests, so that a leak is reported once.
func (m leakChecked) Run() int { return leaktest.Run(m.M) }

// Main runs the tests of a package, whose scripts may execute the programs, each as a process of its own.
func Main(m *testing.M, programs map[string]func()) {
	if os.Getenv(raceOptions) == "" {
		// A program built with the race detector sleeps for a second before it exits, so that
		// goroutines which still run report their races. The scripts of one package execute some
		// 400 programs, and each ends its goroutines before it exits.
		_ = os.Setenv(raceOptions, "atexit_sleep_ms=0")
	}
	testscript.Main(leakChecked{m}, programs)
}

// raceOptions names the variable from which a program reads the options of the race detector.
const raceOptions = "GORACE"

// Run runs all scripts. Each has a directory and a HOME of its own. Scripts have the
// given commands, those of testscript, and "await". update rewrites the golden parts of
// the scripts.
func Run(t *testing.T, update bool, commands map[string]Command) {
	t.Helper()
	commands["await"] = await
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		UpdateScripts:       update,
		Setup: func(env *testscript.Env) error {
			env.Setenv("HOME", filepath.Join(env.WorkDir, "home"))
			env.Setenv(raceOptions, os.Getenv(raceOptions))
			return os.Mkdir(filepath.Join(env.WorkDir, "home"), 0o755)
		},
		Cmds: commands,
	})
}

// await implements "await FILE VARIABLE". It waits for the file, at most two minutes, and
// sets the variable to its text. A server under the race detector takes 20 s to start on a busy machine.
func await(ts *testscript.TestScript, _ bool, args []string) {
	if len(args) != 2 {
		ts.Fatalf("usage: await FILE VARIABLE")
	}
	deadline := time.Now().Add(2 * time.Minute)
	for {
		data, err := os.ReadFile(ts.MkAbs(args[0]))
		if err == nil {
			ts.Setenv(args[1], strings.TrimSpace(string(data)))
			return
		}
		if time.Now().After(deadline) {
			ts.Fatalf("%s does not appear: %v", args[0], err)
		}
		time.Sleep(5 * time.Millisecond) // another process makes the file, so that there is nothing to wait on
	}
}
