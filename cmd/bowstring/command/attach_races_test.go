package command

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"testing"

	"bowstring/internal/objecttest"
	"bowstring/schema"
)

// BenchmarkAttachRaces reads attached objects while they change just before they are read, or in the middle of an answer, and
// change back. It reports how many reads were lost, and how many had other bytes than were attached.
func BenchmarkAttachRaces(b *testing.B) {
	server, err := objecttest.Start(objecttest.Config{Seed: 11})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = server.Close() }()
	b.Setenv("AWS_ACCESS_KEY_ID", "id")
	b.Setenv("AWS_SECRET_ACCESS_KEY", "secret of the test")
	const objects = 50
	url, content := server.URL("b"), map[string][]byte{}
	for i := range objects {
		key := fmt.Sprintf("train/%02d.wav", i)
		content[key] = []byte(wave(100 + i))
		server.PutObject("b", key, content[key])
	}
	there := filepath.Join(b.TempDir(), "attached")
	if out, err := exec.Command("bowstring", "attach", url, "d", "--store", there).CombinedOutput(); err != nil {
		b.Fatalf("%v: %s", err, out)
	}
	st, err := openStore(b.Context(), there, false, quiet)
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = st.Close() }()
	_, rows, sets := manifestOf(b, st, "d")
	server.Fail(objecttest.Fault{Kinds: []objecttest.Kind{objecttest.Get}, Share: .3, Change: true})
	server.Fail(objecttest.Fault{Kinds: []objecttest.Kind{objecttest.Get}, Share: .05, Short: true})
	rng := rand.New(rand.NewPCG(11, 0))
	wrong, lost := 0, 0
	for range b.N {
		ref := rows[rng.IntN(len(rows))].refs[0]
		a, _ := schema.ParseObjectAddress(ref.Key)
		key := sets[a.Prefix].Objects[a.Object].Key
		blob, err := st.Get(b.Context(), ref)
		switch {
		case err == nil && !bytes.Equal(blob.Bytes(), content[key]):
			wrong++
		case errors.Is(err, schema.ErrDataLoss), errors.Is(err, schema.ErrUnavailable):
			lost++
			server.PutObject("b", key, content[key])
		case err != nil:
			b.Fatal(err)
		}
		blob.Release()
	}
	b.ReportMetric(float64(wrong), "wrong")
	b.ReportMetric(float64(lost), "lost")
}
