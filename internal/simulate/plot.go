package simulate

import (
	"bytes"
	"html/template"
	"strconv"
	"strings"

	"github.com/dustin/go-humanize"
)

// panel is one of the curves of a plot.
type panel struct {
	Title, Most string
	Top         float64
	Line        string // points of a polyline
}

// Sizes of a plot, in pixels.
const (
	plotWidth   = 800.0
	panelHeight = 140.0
	panelEvery  = 190.0
)

var plot = template.Must(template.New("plot").Parse(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 900 {{.Height}}" font-family="sans-serif" font-size="12">
<rect width="900" height="{{.Height}}" fill="white"/>
{{range .Panels}}<g transform="translate(60 {{.Top}})">
<text y="-8" font-weight="bold">{{.Title}}</text><text x="800" y="-8" text-anchor="end">most: {{.Most}}</text>
<rect width="800" height="140" fill="none" stroke="#bbb"/>
<polyline points="{{.Line}}" fill="none" stroke="#1565c0" stroke-width="1.5"/>
</g>
{{end}}<text x="60" y="{{.Foot}}">0 s</text><text x="860" y="{{.Foot}}" text-anchor="end">{{.End}} s</text>
</svg>
`))

// Plot draws the report's series as SVG: a panel each for samples, bytes from the store, bytes between nodes, and
// nodes.
func (r *Report) Plot() ([]byte, error) {
	size := func(v float64) string { return humanize.Bytes(uint64(v)) + "/s" }
	count := func(v float64) string { return humanize.CommafWithDigits(v, 0) }
	var panels []panel
	for _, c := range []struct {
		title string
		of    func(*Point) float64
		show  func(float64) string
	}{
		{"samples a second", func(p *Point) float64 { return p.SamplesPerS }, count},
		{"from the store", func(p *Point) float64 { return p.StoreBPerS }, size},
		{"between nodes", func(p *Point) float64 { return p.PeerBPerS }, size},
		{"nodes that run", func(p *Point) float64 { return float64(p.Nodes) }, count},
	} {
		most := 0.0
		for i := range r.Series {
			most = max(most, c.of(&r.Series[i]))
		}
		var line strings.Builder
		for i := range r.Series {
			p := &r.Series[i]
			x, y := plotWidth*ratio(p.AtS, r.Series[len(r.Series)-1].AtS), panelHeight*(1-ratio(c.of(p), most))
			line.WriteString(strconv.FormatFloat(x, 'f', 1, 64) + "," + strconv.FormatFloat(y, 'f', 1, 64) + " ")
		}
		panels = append(panels, panel{c.title, c.show(most), 40 + panelEvery*float64(len(panels)),
			strings.TrimSpace(line.String())})
	}
	height := 40 + panelEvery*float64(len(panels))
	var b bytes.Buffer
	err := plot.Execute(&b, map[string]any{"Panels": panels, "Height": height, "Foot": height - 28,
		"End": strconv.FormatFloat(r.Seconds, 'f', 1, 64)})
	return b.Bytes(), err
}
