package main

import (
	"bytes"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"go.uber.org/goleak"

	"bowstring/cmd/bowstring/command"
)

// leakChecked fails a run of tests that leaves goroutines.
type leakChecked struct{ *testing.M }

func (m leakChecked) Run() int {
	code := m.M.Run()
	if err := goleak.Find(); code == 0 && err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

func TestMain(m *testing.M) {
	testscript.Main(leakChecked{m}, map[string]func(){"bowstring": command.Main, "bowstring-lab": main})
}

// TestScripts runs the scripts in testdata/script. Each has a directory of its own, and each program is a process of
// its own.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		Setup: func(env *testscript.Env) error {
			env.Setenv("HOME", filepath.Join(env.WorkDir, "home"))
			return os.Mkdir(filepath.Join(env.WorkDir, "home"), 0o755)
		},
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"photos": cmdPhotos,
			"await":  cmdAwait,
		},
	})
}

// cmdPhotos is "photos DIR N": it makes a folder of small images, the last third in the split valid.
func cmdPhotos(ts *testscript.TestScript, _ bool, args []string) {
	if len(args) != 2 {
		ts.Fatalf("usage: photos DIR N")
	}
	rows, err := strconv.Atoi(args[1])
	ts.Check(err)
	for i := range rows {
		split := "train"
		if i >= rows-rows/3 {
			split = "valid"
		}
		path := filepath.Join(ts.MkAbs(args[0]), split, []string{"cat", "dog", "tench"}[i%3], fmt.Sprintf("%04d.png", i))
		ts.Check(os.MkdirAll(filepath.Dir(path), 0o755))
		picture := image.NewGray(image.Rect(0, 0, 1+i%5, 1))
		picture.Set(0, 0, color.Gray{uint8(i)})
		var data bytes.Buffer
		ts.Check(png.Encode(&data, picture))
		ts.Check(os.WriteFile(path, data.Bytes(), 0o644))
	}
}

// cmdAwait is "await FILE VARIABLE": it waits for the file and puts its text into the variable.
func cmdAwait(ts *testscript.TestScript, _ bool, args []string) {
	if len(args) != 2 {
		ts.Fatalf("usage: await FILE VARIABLE")
	}
	deadline := time.Now().Add(30 * time.Second)
	for {
		data, err := os.ReadFile(ts.MkAbs(args[0]))
		if err == nil {
			ts.Setenv(args[1], strings.TrimSpace(string(data)))
			return
		}
		if time.Now().After(deadline) {
			ts.Fatalf("%s does not appear: %v", args[0], err)
		}
		time.Sleep(5 * time.Millisecond) // another process makes the file: there is nothing to wait on
	}
}
