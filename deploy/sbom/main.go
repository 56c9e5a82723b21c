// Command sbom writes bills of materials in CycloneDX's format: of programs, of wheels and of the container image.
//
//	sbom --out DIR --version 0.1.0 FILE...
//
// A FILE is a program of Go, a wheel with one in it or of the client alone, or the directory of an OCI image
// layout. The list comes from the artifact: the modules that the linker wrote into the
// program, and what the wheel's metadata requires. The same artifacts give the same
// bytes: there is no time in them, and the serial number is made of the artifact's hash.
package main

import (
	"crypto/sha256"
	"debug/buildinfo"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

func main() {
	out := flag.String("out", "", "`DIR` to write to")
	version := flag.String("version", "", "version of the program, which is not in it where paths are trimmed")
	flag.Parse()
	if err := run(*out, *version, flag.Args()); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "sbom:", err)
		os.Exit(1)
	}
}

func run(out, version string, paths []string) error {
	if out == "" || version == "" || len(paths) == 0 {
		return errors.New("want --out DIR, --version V and at least one program, wheel or image")
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	for _, path := range paths {
		found, err := read(path, version)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		for _, a := range found {
			if err := write(filepath.Join(out, a.name+".cdx.json"), bill(a)); err != nil {
				return err
			}
		}
	}
	return nil
}

// artifact is something that is given away.
type artifact struct {
	name    string // of the document
	subject cdx.Component
	hash    [sha256.Size]byte
	program *buildinfo.BuildInfo
	needs   []string // what the wheel's metadata requires
}

func read(path, version string) ([]artifact, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	switch {
	case info.IsDir():
		return readImage(path, version)
	case strings.HasSuffix(path, ".whl"):
		return one(readWheel(path))
	default:
		return one(readProgram(path, version))
	}
}

func one(a artifact, err error) ([]artifact, error) { return []artifact{a}, err }

func setting(b *buildinfo.BuildInfo, key string) string {
	for _, s := range b.Settings {
		if s.Key == key {
			return s.Value
		}
	}
	return ""
}

// bill lists what an artifact is made of.
func bill(a artifact) *cdx.BOM {
	b := cdx.NewBOM()
	b.SerialNumber = serial(a.hash)
	a.subject.BOMRef = "subject"
	a.subject.Hashes = &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: fmt.Sprintf("%x", a.hash)}}
	a.subject.Licenses = &cdx.Licenses{{License: &cdx.License{ID: "Apache-2.0"}}}
	b.Metadata = &cdx.Metadata{Component: &a.subject}
	components := []cdx.Component{}
	var modules []*debug.Module
	if a.program != nil {
		modules = a.program.Deps
		version := strings.TrimPrefix(a.program.GoVersion, "go")
		components = append(components, cdx.Component{BOMRef: "pkg:golang/std@" + version,
			Type: cdx.ComponentTypeLibrary, Name: "std", Version: version, PackageURL: "pkg:golang/std@" + version})
	}
	for _, m := range modules {
		properties := []cdx.Property{}
		if m.Replace != nil {
			properties = append(properties, cdx.Property{Name: "bowstring:go:replaces",
				Value: m.Path + "@" + m.Version})
			m = m.Replace
		}
		properties = append(properties, cdx.Property{Name: "bowstring:go:sum", Value: m.Sum})
		url := "pkg:golang/" + strings.ToLower(m.Path) + "@" + m.Version // as package URLs of modules are written
		components = append(components, cdx.Component{
			BOMRef: url, Type: cdx.ComponentTypeLibrary, Name: m.Path, Version: m.Version, PackageURL: url,
			Properties: &properties,
		})
	}
	for _, need := range a.needs {
		name := strings.ToLower(need[:strings.IndexFunc(need+";", func(r rune) bool {
			return strings.ContainsRune("<>=!~;[ (", r)
		})])
		components = append(components, cdx.Component{
			BOMRef: "requires:" + need, Type: cdx.ComponentTypeLibrary, Name: name, PackageURL: "pkg:pypi/" +
				strings.ReplaceAll(name, "_", "-"),
			Properties: &[]cdx.Property{{Name: "bowstring:python:requires", Value: need}},
		})
		if strings.Contains(need, "extra ==") {
			components[len(components)-1].Scope = cdx.ScopeOptional
		}
	}
	slices.SortFunc(components, func(x, y cdx.Component) int { return strings.Compare(x.BOMRef, y.BOMRef) })
	refs := make([]string, len(components))
	for i, c := range components {
		refs[i] = c.BOMRef
	}
	b.Components = &components
	b.Dependencies = &[]cdx.Dependency{{Ref: "subject", Dependencies: &refs}}
	return b
}

// serial is a UUID of version 8, which is for numbers made in ways of one's own (RFC 9562).
func serial(hash [sha256.Size]byte) string {
	u := hash[:16]
	u[6], u[8] = u[6]&0x0f|0x80, u[8]&0x3f|0x80
	return fmt.Sprintf("urn:uuid:%x-%x-%x-%x-%x", u[0:4], u[4:6], u[6:8], u[8:10], u[10:16])
}

func write(path string, b *cdx.BOM) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(cdx.NewBOMEncoder(f, cdx.BOMFileFormatJSON).SetPretty(true).EncodeVersion(b, cdx.SpecVersion1_6),
		f.Close())
}
