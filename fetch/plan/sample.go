package plan

import (
	"fmt"

	"bowstring/schema"
)

// checkSample checks what says that samples come by weight or by class.
func checkSample(cfg *Config) error {
	if cfg.Weights == nil && cfg.Balance == nil {
		return nil
	}
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
