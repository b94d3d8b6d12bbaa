package tunnel

// Find is find with its result in words.
func (n *Nodes) Find(host, port string) (string, error) {
	d, err := n.find(host, port)
	if d.edge {
		return "edge " + string(d.node), err
	}
	return d.address, err
}
