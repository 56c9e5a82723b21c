package main

import (
	"archive/tar"
	"archive/zip"
	"bufio"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

func readProgram(path, version string) (artifact, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return artifact{}, err
	}
	info, err := buildinfo.Read(bytes.NewReader(data))
	if err != nil {
		return artifact{}, err
	}
	return artifact{
		name: fmt.Sprintf("bowstring-%s-%s-%s", version, setting(info, "GOOS"), setting(info, "GOARCH")),
		subject: cdx.Component{Type: cdx.ComponentTypeApplication, Name: "bowstring", Version: version,
			PackageURL: "pkg:generic/bowstring@" + version + "?arch=" + setting(info, "GOARCH")},
		hash: sha256.Sum256(data), program: info,
	}, nil
}

func readWheel(path string) (a artifact, err error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return a, err
	}
	packed, err := zip.NewReader(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		return a, err
	}
	a = artifact{name: strings.TrimSuffix(filepath.Base(path), ".whl"), hash: sha256.Sum256(data)}
	a.subject = cdx.Component{Type: cdx.ComponentTypeLibrary, Name: "bowstring"}
	for _, f := range packed.File {
		program := strings.HasSuffix(f.Name, ".data/scripts/bowstring")
		if !program && !strings.HasSuffix(f.Name, ".dist-info/METADATA") {
			continue
		}
		r, err := f.Open()
		if err != nil {
			return a, err
		}
		inside, err := io.ReadAll(r)
		if err = errors.Join(err, r.Close()); err != nil {
			return a, err
		}
		if program {
			if a.program, err = buildinfo.Read(bytes.NewReader(inside)); err != nil {
				return a, err
			}
			continue
		}
		lines := bufio.NewScanner(bytes.NewReader(inside))
		for lines.Scan() && lines.Text() != "" { // what follows an empty line is the description
			switch name, value, _ := strings.Cut(lines.Text(), ": "); name {
			case "Requires-Dist":
				a.needs = append(a.needs, value)
			case "Version":
				a.subject.Version, a.subject.PackageURL = value, "pkg:pypi/bowstring@"+value
			}
		}
		if err := lines.Err(); err != nil {
			return a, err
		}
	}
	// The wheel of the client alone is for any system, and has no program.
	if a.program == nil && !strings.HasSuffix(path, "-py3-none-any.whl") || a.subject.Version == "" {
		return a, errors.New("a wheel without program or metadata")
	}
	return a, nil
}

// readImage reads the images of a layout, one for each processor.
func readImage(dir, version string) (list []artifact, err error) {
	var index struct {
		Manifests []struct {
			Digest   string
			Platform struct{ Architecture string }
		}
	}
	if err := readJSON(filepath.Join(dir, "index.json"), &index); err != nil {
		return nil, err
	}
	blob := func(digest string) string {
		kind, sum, _ := strings.Cut(digest, ":")
		return filepath.Join(dir, "blobs", kind, sum)
	}
	for _, m := range index.Manifests {
		var manifest struct{ Layers []struct{ Digest string } }
		if err := readJSON(blob(m.Digest), &manifest); err != nil {
			return nil, err
		}
		a := artifact{}
		for _, l := range manifest.Layers {
			if err := a.readLayer(blob(l.Digest)); err != nil {
				return nil, err
			}
		}
		if a.program == nil {
			return nil, errors.New("an image without the program")
		}
		if _, err := hex.Decode(a.hash[:], []byte(strings.TrimPrefix(m.Digest, "sha256:"))); err != nil {
			return nil, err
		}
		a.name = fmt.Sprintf("bowstring-%s-image-%s", version, m.Platform.Architecture)
		a.subject = cdx.Component{Type: cdx.ComponentTypeContainer, Name: "bowstring", Version: version,
			PackageURL: "pkg:oci/bowstring@" + strings.Replace(m.Digest, ":", "%3A", 1) + "?arch=" +
				m.Platform.Architecture}
		list = append(list, a)
	}
	return list, nil
}

// readLayer looks for the program in a layer.
func (a *artifact) readLayer(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	unzipped, err := gzip.NewReader(f)
	if err != nil {
		return err
	}
	for files := tar.NewReader(unzipped); ; {
		h, err := files.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if h.Name == "bowstring" {
			data, err := io.ReadAll(files)
			if err != nil {
				return err
			}
			if a.program, err = buildinfo.Read(bytes.NewReader(data)); err != nil {
				return err
			}
		}
	}
}

func readJSON(path string, into any) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return json.Unmarshal(data, into)
}
