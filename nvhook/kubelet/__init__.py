"""The Kubernetes device plugin: tells the kubelet which GPUs there are, and whom it gave which.

Pure: settings, config_file, resources, answers, preferred, health. At the edge: wire (messages),
server and registration (the kubelet's sockets), watch and nvml_watch (NVML, in a child process),
uevents, topology, mps, metrics. daemon puts them together.
"""
