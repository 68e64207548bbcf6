// SPDX-License-Identifier: Apache-2.0

package observe

import "github.com/prometheus/client_golang/prometheus"

// peers counts what peers give and get.
type peers struct {
	received, sent    prometheus.Counter
	answers, failures *prometheus.CounterVec
}

func newPeers() peers {
	return peers{
		received: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "berth_peer_received_bytes_total",
			Help: "Bytes that peers sent.",
		}),
		sent: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "berth_peer_sent_bytes_total",
			Help: "Bytes of blobs that were sent to peers.",
		}),
		answers: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "berth_peer_answers_total",
			Help: "Questions of peers, by the answer.",
		}, []string{"answer"}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "berth_peer_failures_total",
			Help: "Peers that failed, by how.",
		}, []string{"kind"}),
	}
}

// PeerAnswered counts an answer to a peer, and the bytes that were sent with it.
func (m *Metrics) PeerAnswered(answer string, bytes int64) {
	m.peers.answers.WithLabelValues(answer).Inc()
	m.peers.sent.Add(float64(bytes))
}

// PeerSent counts bytes that a peer sent.
func (m *Metrics) PeerSent(n int) { m.peers.received.Add(float64(n)) }

// PeerFailed counts a failure of a peer.
func (m *Metrics) PeerFailed(kind string) { m.peers.failures.WithLabelValues(kind).Inc() }
