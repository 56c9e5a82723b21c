package cql

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestModuleFiles: go.gocql.mod is go.mod without the replacement.
func TestModuleFiles(t *testing.T) {
	read := func(name string) string {
		t.Helper()
		data, err := os.ReadFile(filepath.Join("..", "..", "..", name))
		if err != nil {
			t.Fatal(err)
		}
		var lines []string
		for line := range strings.Lines(string(data)) {
			if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "//") &&
				!strings.Contains(line, "gocql => ") {
				lines = append(lines, line)
			}
		}
		return strings.Join(lines, "\n")
	}
	if own, plain := read("go.mod"), read("go.gocql.mod"); own != plain {
		t.Error("go.gocql.mod requires other things than go.mod: copy it, and go.sum to go.gocql.sum, and take the " +
			"replacement out")
	}
}
