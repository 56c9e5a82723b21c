package local

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// TestRebuildKilled kills a rebuild between any two of its steps, of a store with a damaged database, and of one
// without. The remaining data is read right or refused, and another rebuild restores everything.
func TestRebuildKilled(t *testing.T) {
	image, has := damageSample(t, true)
	for name, damage := range map[string]func(t *testing.T, dir string){
		"damaged": func(t *testing.T, dir string) {
			manifests, err := filepath.Glob(filepath.Join(dir, pebbleDir, "MANIFEST-*"))
			if err != nil || len(manifests) == 0 {
				t.Fatal(manifests, err)
			}
			flip(t, manifests[0], 20)
		},
		"gone": func(t *testing.T, dir string) {
			if err := os.RemoveAll(filepath.Join(dir, pebbleDir)); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			var steps []string
			for n := 0; !slices.Contains(steps, "rebuilt"); n++ {
				dir := copyStore(t, image)
				damage(t, dir)
				c := startChild(t, "rebuild", dir, n)
				c.until(t, func(line string) bool {
					steps = append(steps, line)
					return true
				})
				_ = c.cmd.Wait() // "signal: killed"
				at := "killed at " + steps[n]
				readDamaged(t, at, dir, has)
				requireNoOldNumber(t, at, copyStore(t, dir), has)
				requireRebuilt(t, at, dir, has)
			}
			if len(steps) < 5 {
				t.Errorf("the steps are %q", steps)
			}
		})
	}
}
