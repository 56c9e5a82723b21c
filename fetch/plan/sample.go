package plan

import (
	"fmt"

	"bowstring/schema"
)

// InPieces does something for n things, piece by piece, each at a turn. It fails only with what a turn does.
func InPieces(n, piece int64, turn func(piece func() error) error, do func(from, to int64)) error {
	for from := int64(0); from < n; from += piece {
		err := turn(func() error {
			do(from, min(from+piece, n))
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// checkSample checks the config of a plan in which samples come by weight or by class.
func checkSample(cfg *Config) error {
	n := cfg.Selection.Len()
	switch {
	case cfg.EpochRows < 1 || cfg.EpochRows > schema.MaxEpochSize:
		return &schema.FieldError{Field: "sample.epoch_size", Got: fmt.Sprintf("%d rows", cfg.EpochRows),
			Want: fmt.Sprintf("1 to %d", int64(schema.MaxEpochSize))}
	case !cfg.Shuffle || cfg.BlockRows > 0 || cfg.Buckets != nil || cfg.Weights != nil && cfg.Balance != nil:
		return fmt.Errorf("%w: a sample with another order than a shuffle of its own", schema.ErrInvalid)
	case cfg.Weights != nil && (cfg.Weights.Len() != n || cfg.Weights.Positive() == 0),
		cfg.Balance != nil && int64(len(cfg.Balance.classes)) != n:
		return fmt.Errorf("%w: weights or classes of other samples than the %d that are selected", schema.ErrInvalid, n)
	}
	return nil
}
