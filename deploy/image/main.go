// Command image makes the container image of Bowstring, for each processor
// whose static program it is given, without a daemon: an OCI image layout.
//
//	image --out DIR --version 0.1.0 amd64=PROGRAM arm64=PROGRAM
//
// The image has the program, an account that is not root, and the folders /data
// and /tmp; no shell, no package. The same programs give the same bytes.
package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// account is the number of the user and the group that the program runs as.
const account = 65532

func main() {
	out := flag.String("out", "", "`DIR` of the image layout; it must not exist")
	version := flag.String("version", "", "version that the labels say")
	flag.Parse()
	if err := write(*out, *version, flag.Args()); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

// write makes the layout. programs are ARCH=FILE.
func write(out, version string, programs []string) error {
	if out == "" || version == "" || len(programs) == 0 {
		return errors.New("want --out DIR, --version V and at least one ARCH=PROGRAM")
	}
	if err := os.Mkdir(out, 0o755); err != nil {
		return err
	}
	index := v1.ImageIndex(mutate.IndexMediaType(empty.Index, types.OCIImageIndex))
	for _, p := range programs {
		arch, file, found := strings.Cut(p, "=")
		if !found {
			return fmt.Errorf("%q: want ARCH=PROGRAM, such as amd64=bowstring", p)
		}
		img, err := image(arch, file, version)
		if err != nil {
			return fmt.Errorf("%s: %w", p, err)
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add:        img,
			Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: arch}},
		})
	}
	_, err := layout.Write(out, index)
	return err
}

func image(arch, file, version string) (v1.Image, error) {
	program, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	base, err := layer(
		entry{name: "data/", mode: 0o750},
		entry{name: "etc/", mode: 0o755, root: true},
		entry{name: "etc/group", mode: 0o644, root: true, data: fmt.Appendf(nil, "root:x:0:\nbowstring:x:%d:\n",
			account)},
		entry{name: "etc/passwd", mode: 0o644, root: true,
			data: fmt.Appendf(nil, "root:x:0:0::/:/none\nbowstring:x:%d:%d::/data:/none\n", account, account)},
		entry{name: "tmp/", mode: 0o1777, root: true},
	)
	if err != nil {
		return nil, err
	}
	top, err := layer(entry{name: "bowstring", mode: 0o755, root: true, data: program})
	if err != nil {
		return nil, err
	}
	img, err := mutate.AppendLayers(mutate.MediaType(mutate.ConfigMediaType(empty.Image, types.OCIConfigJSON),
		types.OCIManifestSchema1), base, top)
	if err != nil {
		return nil, err
	}
	return mutate.ConfigFile(img, config(img, arch, version))
}

// config says how the image is run. Its layers are those of img.
func config(img v1.Image, arch, version string) *v1.ConfigFile {
	file, err := img.ConfigFile()
	if err != nil { // it was made above
		panic(err)
	}
	file = file.DeepCopy()
	file.OS, file.Architecture = "linux", arch
	file.Created = v1.Time{Time: time.Unix(0, 0).UTC()}
	file.Config = v1.Config{
		User:         fmt.Sprintf("%d:%d", account, account),
		Entrypoint:   []string{"/bowstring"},
		Cmd:          []string{"serve"},
		Env:          []string{"PATH=/", "HOME=/data", "BOWSTRING_STORE=/data/store"},
		ExposedPorts: map[string]struct{}{"8815/tcp": {}},
		Volumes:      map[string]struct{}{"/data": {}},
		WorkingDir:   "/data",
		StopSignal:   "SIGTERM",
		Labels: map[string]string{
			"org.opencontainers.image.title":       "bowstring",
			"org.opencontainers.image.description": "An Arrow Flight data service that feeds training jobs",
			"org.opencontainers.image.version":     version,
			"org.opencontainers.image.licenses":    "Apache-2.0",
		},
	}
	return file
}

// entry is a file of a layer, or a folder, whose name ends with a slash.
type entry struct {
	name string
	mode int64
	root bool // whether it is root's, and not the account's
	data []byte
}

func layer(entries ...entry) (v1.Layer, error) {
	var packed bytes.Buffer
	w := tar.NewWriter(&packed)
	for _, e := range entries {
		h := &tar.Header{Name: e.name, Mode: e.mode, Size: int64(len(e.data)), ModTime: time.Unix(0, 0),
			Format: tar.FormatPAX, Typeflag: tar.TypeReg}
		if strings.HasSuffix(e.name, "/") {
			h.Typeflag = tar.TypeDir
		}
		if !e.root {
			h.Uid, h.Gid = account, account
		}
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := w.Write(e.data); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(packed.Bytes())), nil
	},
		tarball.WithMediaType(types.OCILayer))
}
