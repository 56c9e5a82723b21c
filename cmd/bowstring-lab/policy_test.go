package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// runLab runs bowstring-lab in this process and returns what it wrote.
func runLab(t *testing.T, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	home := t.TempDir()
	t.Setenv("HOME", home)
	t.Setenv("XDG_CONFIG_HOME", home)
	in, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	var written [2]string
	var files [2]*os.File
	for i := range files {
		written[i] = filepath.Join(home, []string{"stdout", "stderr"}[i])
		if files[i], err = os.Create(written[i]); err != nil {
			t.Fatal(err)
		}
		defer files[i].Close()
	}
	status = program().Run(args, in, files[0], files[1])
	for i, path := range written {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		written[i] = string(b)
	}
	return status, written[0], written[1]
}

func TestBenchPolicy(t *testing.T) {
	status, stdout, stderr := runLab(t, "policy", "--samples", "300", "--epochs", "4", "--cache",
		"10%,0.5", "--policy", "next-use,lru", "--json")
	if status != 0 {
		t.Fatalf("status %d: %s", status, stderr)
	}
	var lines []policyLine
	if err := json.Unmarshal([]byte(stdout), &lines); err != nil {
		t.Fatal(err)
	}
	if len(lines) != 2*2*2 {
		t.Fatalf("%d lines for two mixes, sizes and policies: %s", len(lines), stdout)
	}
	for i, l := range lines {
		if l.HitRate > l.Optimum || l.Uses != int64(l.Jobs)*300*4 || l.First != 300 {
			t.Errorf("%+v", l)
		}
		if l.Policy == "next-use" && (l.Ratio < 0.9 || l.HitRate <= lines[i+1].HitRate) {
			t.Errorf("%+v, and then %+v", l, lines[i+1])
		}
	}

	status, stdout, stderr = runLab(t, "policy", "--job", "samples=200,epochs=3", "--job",
		"samples=100,speed=2.5,start=0.5,seed=7,dataset=other", "--cache", "25%")
	if status != 0 || !strings.Contains(stdout, "OPTIMUM") || !strings.Contains(stdout, "25%") {
		t.Errorf("status %d: %s%s", status, stdout, stderr)
	}
}

func TestBenchPolicyRefuses(t *testing.T) {
	for args, want := range map[string]string{
		"--policy=best":         "next-use, lru",
		"--cache=120%":          "want a share",
		"--job=speed":           "want KEY=VALUE",
		"--job=pace=2":          `got key "pace"`,
		"--job=epochs=0":        "want 1 or more",
		"--job=speed=0":         "speed",
		"--jitter=1":            "--jitter",
		"--samples=0":           "--samples",
		"--jobs=0":              "--jobs",
		"--candidates=0":        "--candidates",
		"--epochs=999999999999": "epochs",
	} {
		if status, _, stderr := runLab(t, "policy", args); status == 0 ||
			!strings.Contains(stderr, want) {
			t.Errorf("%s: status %d, %q, want %q", args, status, stderr, want)
		}
	}
}
