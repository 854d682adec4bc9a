"""The viewer: a robot and its motion in a browser.

foxglove    topics for Foxglove
playing     playback of recordings, and live joint states
scene       poses, colours and arrows of a state; contact forces of recorded robots
viewer      the web viewer (viser)
web_proxy   checks the origin of browser connections
"""
