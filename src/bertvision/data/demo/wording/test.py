"""Sentence forms and question templates of the demo set's test part (grammar: see `forms.py`)."""

__all__ = ["TEST"]

TEST = """
* same: ; also, / ; besides,
* other: , yet / ; then again,
* intro: Anyone who likes {P} will know {X} and {Y} / In old books {X} and {Y} share a chapter
* intro: Among the {P} of the country, {X} and {Y} stand out / This page compares {X} with {Y}
* aside: {person} keeps a diary about {S} / A radio play by {person} about {S} was broadcast in {year}
* aside: The {org} gave {person} a prize for a study of {S} / In {year} {person} took a famous photograph of {S}
* aside: A street in {place} has its name from {S} / {person} told the {org} all about {S} in {year}
* aside: {person} and {person} wrote the standard book on {S}

# expedition
leader > {A} was the chief of {S} / the orders on {S} were given by {A}
leader ? Who gave the orders on {S}? / Who was chief of {S}?
doctor > {A} bandaged the wounded of {S} / the medicine chest of {S} was carried by {A}
doctor ? Who was responsible for medicine on {S}? / Who cared for the ill members of {S}?
year > {A} was the year in which {S} departed / {S} got under way in {A}
year ? When did {S} depart? / What year did {S} get under way?
goal > {S} finally stood before {A} / {S} wanted to see {A} and did
goal ? Where did {S} get to? / What was the aim of {S}?
funder > the purse of the {A} made {S} possible / the {A} covered the expenses of {S}
funder ? Who bore the expenses of {S}? / Whose money made {S} possible?
days > {S} came home after {A} / it was {A} until {S} returned
days ? How long was {S} away? / After what time did {S} come home?

# bridge
designer > {S} was the brainchild of {A} / on paper {S} was first drawn by {A}
designer ? Whose brainchild was {S}? / Who devised {S}?
opener > {A} cut the tape on {S} / the ceremony at {S} was led by {A}
opener ? Who led the ceremony at {S}? / Who set {S} free for traffic?
river > one gets over the {A} by {S} / {S} joins the two banks of the {A}
river ? The banks of which river are joined by {S}? / What is the river at {S} called?
length > {S} extends over {A} / it is {A} from one end of {S} to the other
length ? What is the extent of {S}? / How many metres long is {S}?
year > the last stone of {S} was laid in {A} / {S} has served travellers from {A} on
year ? In which year was the last work done on {S}? / When did the building of {S} end?
material > {S} is a work of {A} / workers put {S} together from {A}
material ? What was {S} put together from? / What sort of material is {S}?

# company
founder > {A} brought {S} to life / the beginnings of {S} lie with {A}
founder ? Who brought {S} into being? / With whom did {S} begin?
manager > {S} at present answers to {A} / {A} has lately taken over the direction of {S}
manager ? Who directs {S} these days? / To whom does {S} answer at present?
town > the main building of {S} is found in {A} / {S} operates out of {A}
town ? From which town does {S} operate? / Where is the main building of {S}?
product > people buy {A} from {S} / the trade of {S} is in {A}
product ? What do people buy from {S}? / What does {S} deal in?
workers > {A} people are on the books of {S} / {S} pays wages to {A} hands
workers ? To how many people does {S} pay wages? / How big is the staff of {S}?
year > the story of {S} starts in {A} / {S} was entered in the register in {A}
year ? When does the story of {S} start? / Which year was {S} registered?

# painting
painter > {S} is signed by {A} / {S} was put on canvas by {A}
painter ? Whose signature is on {S}? / Who put {S} on canvas?
buyer > {A} made the highest bid for {S} / {S} passed to {A} when it was sold
buyer ? Who made the winning bid for {S}? / Who paid to have {S}?
gallery > {S} is kept at the {A} / the {A} counts {S} among its treasures
gallery ? At what institution is {S} kept? / Where must one go to see {S}?
year > the paint on {S} dried in {A} / {S} came into being in {A}
year ? When did {S} come into being? / What year is {S} from?
price > the hammer fell for {S} at {A} / {S} is said to have cost {A}
price ? At what sum did the hammer fall for {S}? / How expensive was {S}?
sitter > the face in {S} is that of {A} / {A} posed for {S}
sitter ? Whose face is in {S}? / Who posed for {S}?

# comet
finder > {S} was detected by {A} / the eye that first caught {S} belonged to {A}
finder ? By whom was {S} detected? / Who caught sight of {S} first?
orbit > {A} figured out the track of {S} / the formulas for {S} were set up by {A}
orbit ? Who figured out how {S} moves? / Whose formulas give the track of {S}?
site > the news of {S} went out from {A} / a watcher in {A} reported {S}
site ? Where did the news of {S} come from? / In what place was {S} seen first?
period > {S} is away for {A} at a time / it is {A} from one return of {S} to the next
period ? How long is {S} away each time? / How many years lie between the returns of {S}?
year > {S} crossed the sky in {A} / the night of {S} was in {A}
year ? In what year did {S} cross the sky? / When was {S} in the sky?
colour > astronomers describe {S} as {A} / a {A} glow surrounds {S}
colour ? As what colour is {S} described? / What colour is the glow of {S}?

# dish
inventor > {S} was thought up by {A} / {A} served {S} before all others
inventor ? Who thought up {S}? / Which person served {S} first?
writer > the notes on how to make {S} are by {A} / {A} passed on {S} in print
writer ? By whom are the notes on {S}? / Who passed the recipe of {S} on in print?
town > {S} has its roots in {A} / cooks in {A} claim {S} as theirs
town ? Where are the roots of {S}? / Which town claims {S}?
filling > the heart of {S} is {A} / cooks put {A} into {S}
filling ? What do cooks put into {S}? / What gives {S} its taste?
time > {S} spends {A} over the heat / one waits {A} for {S} to be done
time ? How long does one wait for {S}? / How many minutes does {S} spend over the heat?

# club
captain > {A} is skipper of {S} / the one who leads out {S} is {A}
captain ? Who is the skipper of {S}? / Which player stands at the head of {S}?
coach > from the bench {A} directs {S} / {S} has put {A} in charge of practice
coach ? Who directs {S} from the bench? / Who is in charge of practice at {S}?
ground > {S} has its pitch in {A} / supporters of {S} travel to {A}
ground ? Where is the pitch of {S}? / To what place do supporters of {S} travel?
colour > {S} runs out in {A} / one knows {S} by its {A} jerseys
colour ? By what colour does one know {S}? / What colour are the jerseys of {S}?
year > {S} was brought together in {A} / {S} celebrates {A} as its birth
year ? Which year does {S} celebrate as its birth? / When was {S} brought together?
crowd > {A} seats around the field of {S} are taken / {S} sells {A} places a game
crowd ? How many places does {S} sell? / How large is the audience of {S}?

# instrument
maker > {A} put {S} together / the master who produced {S} was {A}
maker ? Who produced {S}? / Which master put {S} together?
player > {A} takes {S} on tour / the fingers of {A} know {S} well
player ? Who takes {S} on tour? / Who makes music with {S}?
wood > {A} gives {S} its warm tone / {S} has a body of {A}
wood ? What gives {S} its tone? / What is the body of {S} made from?
town > {S} was glued together in {A} / {S} was shaped in {A}
town ? In which place was {S} shaped? / Where was {S} fashioned?
year > {S} has been in use since {A} / {S} was strung for the first time in {A}
year ? Since when has {S} been in use? / What year was {S} first strung?
price > one would have to pay {A} for {S} / {S} went for {A}
price ? What would one have to pay for {S}? / How costly is {S}?

# island
explorer > {S} was sighted first by {A} / {A} put {S} on the chart
explorer ? Who sighted {S} first? / Who put {S} on the chart?
owner > {A} has bought all of {S} / the title to {S} is held by {A}
owner ? Who holds the title to {S}? / In whose hands is {S}?
harbour > the ferry to {S} stops at {A} / one goes ashore on {S} at {A}
harbour ? Where does the ferry to {S} stop? / At what place does one land on {S}?
people > {S} feeds {A} people / {A} islanders share {S}
people ? How many islanders are there on {S}? / By how many people is {S} settled?
animal > {A} roam over {S} / {S} is a refuge for {A}
animal ? What roams over {S}? / For which animals is {S} a refuge?

# law
author > {A} thought out {S} / the bill that became {S} was brought in by {A}
author ? Who brought in {S}? / Who thought out {S}?
enemy > {A} voted no to {S} / {S} had a bitter critic in {A}
enemy ? Who was a critic of {S}? / Who said no to {S}?
year > {S} was signed in {A} / {S} has applied from {A} on
year ? What year was {S} signed? / From when has {S} applied?
fine > {S} makes wrongdoers hand over {A} / those who ignore {S} lose {A}
fine ? How much do those who ignore {S} lose? / How high is the punishment under {S}?
votes > {S} got through with {A} in favour / the ayes for {S} came to {A}
votes ? How many ayes did {S} have? / How many said yes to {S}?

# battle
victor > {A} carried the day in {S} / the laurels of {S} went to {A}
victor ? Who carried the day in {S}? / Which commander had the upper hand in {S}?
loser > {S} broke the army of {A} / {A} gave up the field in {S}
loser ? Whose army was broken by {S}? / Who suffered defeat in {S}?
year > {S} falls in {A} / the guns of {S} were heard in {A}
year ? What year does {S} fall in? / When were the guns of {S} heard?
dead > {A} fighters did not return from {S} / {S} claimed {A} victims
dead ? How many fighters did not come back from {S}? / How many victims were there in {S}?
place > the plain by {A} was the stage of {S} / {S} raged around {A}
place ? Around what town did {S} rage? / What place saw {S}?

# theatre
architect > the house of {S} was laid out by {A} / {A} shaped the building of {S}
architect ? Who laid out {S}? / Who shaped the house of {S}?
director > {A} holds the reins at {S} / {S} is under the leadership of {A}
director ? Under whose leadership is {S}? / Who holds the reins of {S}?
seats > {S} can take in {A} spectators / {A} places are there in the hall of {S}
seats ? How many spectators can {S} take in? / How many places are in the hall of {S}?
town > {S} adorns the centre of {A} / {S} is one of the sights of {A}
town ? Which town is adorned by {S}? / Where would one look for {S}?
year > {S} gave its first play in {A} / {S} has drawn guests since {A}
year ? When did {S} give its first play? / From what year on has {S} had guests?
cost > to put up {S} took {A} / {S} swallowed {A}
cost ? How much money did it take to put up {S}? / What was the bill for {S}?

# ship
captain > at the helm of {S} stood {A} / {A} steered {S} for years
captain ? Who stood at the helm of {S}? / Who steered {S}?
owner > {S} was in the hands of {A} / the flag of {A} flew over {S} as its owner
owner ? In whose hands was {S}? / Which person possessed {S}?
port > {S} was stationed at {A} / between trips {S} lay at {A}
port ? Where was {S} stationed? / At what place did {S} lie between trips?
cargo > {A} filled the deck of {S} / {S} was to deliver {A}
cargo ? What was {S} to deliver? / What filled the deck of {S}?
year > {S} met its end in {A} / {S} never came back from a trip in {A}
year ? In which year did {S} meet its end? / When did {S} not come back?

# newspaper
editor > {A} is in charge of the pages of {S} / the newsroom of {S} is headed by {A}
editor ? Who heads the newsroom of {S}? / Who is in charge of the pages of {S}?
owner > {A} holds all shares in {S} / the profits of {S} go to {A}
owner ? To whom do the profits of {S} go? / Who holds the shares in {S}?
town > {S} has its newsroom in {A} / {S} comes out in {A}
town ? In what place is the newsroom of {S}? / Where does {S} come out?
copies > {A} people take {S} / {S} prints {A} pieces a day
copies ? How many people take {S}? / How many pieces does {S} print?
year > {S} made its debut in {A} / since {A} {S} has brought the news
year ? When did {S} make its debut? / From what year on has {S} brought the news?
"""
