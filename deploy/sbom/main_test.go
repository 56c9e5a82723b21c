package main

import (
	"archive/zip"
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// wheel makes a wheel for a system, with this test's program in it, or with none if program is "".
func wheel(t *testing.T, program, system string) string {
	t.Helper()
	inside := map[string][]byte{
		"bowstring-1.2.3.dist-info/METADATA": []byte("Name: bowstring\nVersion: 1.2.3\nRequires-Dist: numpy>=1.24\n" +
			"Requires-Dist: torch>=2.2; extra == 'torch'\n\nRequires-Dist: no\n"),
	}
	if program != "" {
		data, err := os.ReadFile(program)
		if err != nil {
			t.Fatal(err)
		}
		inside["bowstring-1.2.3.data/scripts/bowstring"] = data
	}
	var packed bytes.Buffer
	w := zip.NewWriter(&packed)
	for name, text := range inside {
		f, err := w.Create(name)
		if err == nil {
			_, err = f.Write(text)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "bowstring-1.2.3-py3-none-"+system+".whl")
	if err := os.WriteFile(path, packed.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// A program and a wheel give documents that can be read, that list modules and requirements, and are the same each
// time.
func TestBills(t *testing.T) {
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	paths := []string{program, wheel(t, program, "linux"), wheel(t, "", "any")}
	first, again := t.TempDir(), t.TempDir()
	for _, out := range []string{first, again} {
		if err := run(out, "1.2.3", paths); err != nil {
			t.Fatal(err)
		}
	}
	files, err := filepath.Glob(first + "/*.cdx.json")
	if err != nil || len(files) != 3 {
		t.Fatalf("%d documents, want 3: %v", len(files), err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if other, err := os.ReadFile(filepath.Join(again, filepath.Base(file))); err != nil ||
			!bytes.Equal(data, other) {
			t.Errorf("%s is another the second time: %v", filepath.Base(file), err)
		}
		var b cdx.BOM
		if err := cdx.NewBOMDecoder(bytes.NewReader(data), cdx.BOMFileFormatJSON).Decode(&b); err != nil {
			t.Fatal(err)
		}
		if b.Metadata.Component.Version != "1.2.3" || b.Metadata.Timestamp != "" {
			t.Errorf("the subject is %+v of %q", b.Metadata.Component, b.Metadata.Timestamp)
		}
		has := func(url string, scope cdx.Scope) bool {
			return slices.ContainsFunc(*b.Components, func(c cdx.Component) bool {
				return strings.HasPrefix(c.PackageURL, url) && c.Scope == scope
			})
		}
		client := strings.HasSuffix(file, "none-any.cdx.json")
		if has("pkg:golang/std@1.", "") == client ||
			has("pkg:golang/github.com/cyclonedx/cyclonedx-go@v", "") == client {
			t.Errorf("%s has wrong modules: %+v", file, *b.Components)
		}
		isWheel := strings.Contains(file, "-py3-none-")
		numpy, torch := has("pkg:pypi/numpy", ""), has("pkg:pypi/torch", cdx.ScopeOptional)
		if isWheel != numpy || isWheel != torch || has("pkg:pypi/no", "") {
			t.Errorf("%s has wrong requirements: %+v", file, *b.Components)
		}
	}
}

func TestWrongArtifacts(t *testing.T) {
	text := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(text, []byte("text"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{text, filepath.Dir(text), text + ".whl", "nothing", wheel(t, "", "linux")} {
		if err := run(t.TempDir(), "1", []string{path}); err == nil {
			t.Errorf("%s is an artifact", path)
		}
	}
}
