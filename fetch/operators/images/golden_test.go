package images

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"

	"bowstring/fetch/operators/draw"
	"bowstring/fetch/operators/program"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func steps(t testing.TB, text string) []program.Step {
	t.Helper()
	var list []struct {
		Name   string          `json:"name"`
		Params json.RawMessage `json:"params"`
	}
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		t.Fatal(err)
	}
	all := make([]program.Step, len(list))
	for i, s := range list {
		all[i] = program.Step(s)
	}
	return all
}

func compiledOf(t testing.TB, text string) program.Program {
	t.Helper()
	p, err := Compile(steps(t, text))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// result runs a program in memory that has other bytes around and before.
func result(p program.Program, cell []byte, by program.Draws) ([]byte, program.Outcome, error) {
	var out, around []byte
	outcome, err := p.Run(context.Background(), cell, by, func(n int) []byte {
		around = make([]byte, n+32)
		for i := range around {
			around[i] = 0xA5
		}
		out = around[16 : 16+n : 16+n]
		return out
	})
	if len(around) > 0 {
		for i := range 16 {
			if around[i] != 0xA5 || around[len(around)-1-i] != 0xA5 {
				panic("written beside the result")
			}
		}
	}
	return out, outcome, err
}

// TestGolden checks the contract: the results of Pillow 12.1, which tests/images/golden.py
// has written.
func TestGolden(t *testing.T) {
	text, err := os.ReadFile("testdata/golden.json")
	if err != nil {
		t.Fatal(err)
	}
	var cases []struct {
		File     string
		Steps    json.RawMessage
		Position uint64
		SHA256   string
	}
	if err := json.Unmarshal(text, &cases); err != nil {
		t.Fatal(err)
	}
	if len(cases) < 300 {
		t.Fatalf("there are %d cases", len(cases))
	}
	for _, c := range cases {
		cell, err := os.ReadFile(filepath.Join("testdata", c.File))
		if err != nil {
			t.Fatal(err)
		}
		p := compiledOf(t, string(c.Steps))
		out, outcome, err := result(p, cell, program.Draws{Key: draw.Key{Seed: 3, Epoch: 1, Position: c.Position},
			Column: "image"})
		if err != nil {
			t.Errorf("%s %s: %v", c.File, c.Steps, err)
			continue
		}
		if sum := sha256.Sum256(out); hex.EncodeToString(sum[:]) != c.SHA256 {
			t.Errorf("%s %s: other bytes, of %v", c.File, c.Steps, outcome.Dims)
		}
		cost, err := p.Cost(cell, program.Limits{})
		if err != nil || cost.Result.Int64() < int64(len(out)) {
			t.Errorf("%s %s: %d bytes, bound by %d, %v", c.File, c.Steps, len(out), cost.Result, err)
		}
	}
}
