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
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"bowstring/cmd/bowstring/command"
	"bowstring/internal/scripttest"
)

func TestMain(m *testing.M) {
	scripttest.Main(m, map[string]func(){"bowstring": command.Main, "bowstring-lab": main})
}

// TestScripts runs the scripts in testdata/script. Each has a directory of its own, and each program is a process of
// its own.
func TestScripts(t *testing.T) {
	scripttest.Run(t, false, map[string]scripttest.Command{"photos": cmdPhotos})
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
