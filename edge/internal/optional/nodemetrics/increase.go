package nodemetrics

// increaseSamples is how many samples the range of an Increase has: an hour.
const increaseSamples = 60

// Increase is by how much a counter that began at 0 grew within the last increaseSamples samples:
// of a counter that grows and is at rest before the next sample is sent, an alert sees no growth if
// it had no series before, as after a cut. The zero Increase is ready to use; it has no lock.
type Increase struct{ values []float64 }

// Sample takes the counter's next sample, and returns the increase.
func (i *Increase) Sample(value float64) float64 {
	if i.values == nil {
		i.values = []float64{0}
	}
	i.values = append(i.values, value)
	if len(i.values) > increaseSamples+1 {
		i.values = i.values[1:]
	}
	return value - i.values[0]
}
